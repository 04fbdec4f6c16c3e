"""Dynamic sizes on the model zoo: what cannot be proved, and one compilation for many sizes.

    python -m tests.zoo.dynamic                       analyze every entry with batch and sequence dynamic
    python -m tests.zoo.dynamic --run                 and run those that name their dynamic dims at several sizes
    python -m tests.zoo.dynamic --only 'hf-*'         some entries (comma-separated patterns)
    python -m tests.zoo.dynamic --own                 the repository's own models instead of the zoo
    python -m tests.zoo.dynamic --json out.json       results as data too

Batch and sequence are dims 0 and 1 of the tensor inputs, where the entry does not name its dynamic dims
itself; ``mark_dynamic`` where the model keeps them dynamic, ``maybe_mark_dynamic`` where it makes a constant
of one ("weak"). The share of UNKNOWN guards is printed by family. Each entry runs in a forked process.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from . import entries, forked
from .measure import _preload

TIMEOUT = 240.0
SIZES = (2, 3, 5, 7, 8, 13)
EDGES = (1, 0)


def tensors(args: tuple, kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    import torch

    for name, value in [*((str(i), a) for i, a in enumerate(args)), *kwargs.items()]:
        if isinstance(value, torch.Tensor):
            yield name, value


def dynamic_dims(named: dict | None, args: tuple, kwargs: dict[str, Any]) -> dict[str, dict[int, str]]:
    """The dynamic dims of each tensor input: the entry's own, or batch and sequence."""
    names = dict(tensors(args, kwargs))
    if named:
        positional = dict(zip(named, (n for n in names if n.isdigit()), strict=False)) if args else {}
        return {positional.get(n, n): dims for n, dims in named.items() if positional.get(n, n) in names}
    return {
        name: {d: f"{name}.{d}" for d in (0, 1) if d < t.dim() - (t.is_floating_point()) and t.shape[d] > 1}
        for name, t in names.items()
    }


def mark(
    how: Callable[..., Any], dims: dict[str, dict[int, str]], args: tuple, kwargs: dict[str, Any]
) -> None:
    for name, tensor in tensors(args, kwargs):
        for dim in dims.get(name, ()):
            how(tensor, dim)


def resized(value: Any, dims: dict[int, str], sizes: dict[str, int]) -> Any:
    """The tensor with other sizes: its elements again and again."""
    import torch

    for dim, name in dims.items():
        if name in sizes:
            value = value.index_select(dim, torch.arange(sizes[name]) % value.shape[dim])
    return value


# ------------------------------------------------------------------------------------ one entry, in a child


def analyse(make: Callable[[], tuple], named: dict | None) -> dict[str, Any]:
    """Judgements by family and verdict of the dry run under dynamic sizes."""
    import torch

    import fxrewrite
    from fxrewrite import CaptureError
    from tests.support.soundness import first_line

    result: dict[str, Any] = {}
    for how, status in ((torch._dynamo.mark_dynamic, "dynamic"), (torch._dynamo.maybe_mark_dynamic, "weak")):
        model, args, kwargs = make()
        mark(how, dynamic_dims(named, args, kwargs), args, kwargs)
        torch._dynamo.reset()
        began = time.thread_time()
        try:
            with torch.no_grad():
                report = fxrewrite.analyze(model, args, kwargs)
        except CaptureError as error:
            result.update(status="uncaptured", message=first_line(error)[:200])
            continue
        result.update(status=status, seconds=round(time.thread_time() - began, 2))
        break
    else:
        return result
    verdicts: Counter[str] = Counter()
    residuals: Counter[str] = Counter()
    symbolic = 0
    for site in report.sites:
        symbolic += any("s" in described.split("[")[-1] for described in site.operands.values())
        for judgement in site.judgements:
            verdicts[f"{site.kind} {judgement.verdict.value}"] += 1
            if judgement.verdict.value == "unknown":
                residuals[judgement.guard] += 1
    matched = sum(site.matched for site in report.sites)
    faults = [site.reason for site in report.sites if site.code and site.code.name == "INTERNAL"]
    result.update(verdicts=verdicts, residuals=residuals, sites=len(report.sites), matched=matched)
    result.update(symbolic=symbolic, faults=faults, notes=[n for n in report.notes if "by a fault of" in n])
    return result


def run(make: Callable[..., tuple], named: dict) -> dict[str, Any]:
    """Compilations for all sizes, ours and those of the same model under Dynamo's "eager"; wrong results."""
    import torch

    import fxrewrite
    from tests.support import contract
    from tests.support.soundness import first_line

    counts, wrong, coarse, ran = [], [], [], []
    for rewritten in (False, True):
        model, args, kwargs = make()
        dims = dynamic_dims(named, args, kwargs)
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        fast = fxrewrite.rewrite(model) if rewritten else torch.compile(model, backend="eager")
        for size in SIZES + EDGES:
            try:
                eager = _call(make()[0], args, kwargs, dims, size)
            except Exception:
                continue  # a size that the model itself does not take
            try:
                got = _call(fast, args, kwargs, dims, size, marked=size in SIZES)
            except Exception as error:
                if rewritten:
                    wrong.append(f"{size}: {first_line(error)[:160]}")
                continue
            if rewritten:
                ran.append(size)
                try:
                    scores = contract.score(got, eager, _exact(make, dims, size))
                    coarse += [] if all(s.ok for s in scores) else [(size, scores)]
                except contract.ContractError as error:
                    wrong.append(f"{size}: {first_line(error)[:160]}")
        counts.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    for size, scores in coarse:
        try:
            contract.require(_pooled(make, dims, size, scores))
        except contract.ContractError as error:
            wrong.append(f"{size}: {first_line(error)[:160]}")
    return {"compilations": counts[1], "by_dynamo": counts[0], "ran": ran, "wrong": wrong}


def _call(
    model: Any, args: tuple, kwargs: dict[str, Any], dims: dict, size: int, *, marked: bool = False
) -> Any:
    """The model's output where every dynamic dim has this size."""
    import torch

    args, kwargs = _resized_inputs(args, kwargs, dims, size)
    if marked:
        mark(torch._dynamo.maybe_mark_dynamic, dims, args, kwargs)
    with torch.no_grad():
        return model(*args, **kwargs)


def _resized_inputs(args: tuple, kwargs: dict[str, Any], dims: dict, size: int) -> tuple:
    sizes = {name: size for by_dim in dims.values() for name in by_dim.values()}
    return (
        tuple(resized(a, dims.get(str(i), {}), sizes) for i, a in enumerate(args)),
        {n: resized(v, dims.get(n, {}), sizes) for n, v in kwargs.items()},
    )


def _exact(make: Callable[..., tuple], dims: dict, size: int, seed: int = 0) -> Any:
    from tests.support import float64

    model, args, kwargs = make(seed)
    return float64.run_float64(model, *_resized_inputs(args, kwargs, dims, size))


def _pooled(make: Callable[..., tuple], dims: dict, size: int, scores: list) -> list:
    """The scores with those of other weights and values: of one draw, the ratio of two errors is chance."""
    import fxrewrite
    from tests.support import contract
    from tests.support.soundness import POOL_SEEDS

    for seed in POOL_SEEDS:
        model, args, kwargs = make(seed)
        got = _call(fxrewrite.rewrite(model), args, kwargs, dims, size)
        eager = _call(make(seed)[0], args, kwargs, dims, size)
        for score, other in zip(
            scores, contract.score(got, eager, _exact(make, dims, size, seed)), strict=True
        ):
            score.add(other)
    return scores


def one(name: str, own: bool, also_run: bool) -> dict[str, Any]:
    from tests.support.soundness import first_line

    result: dict[str, Any] = {"entry": name, "status": "skip", "message": ""}
    logging.getLogger("torch").setLevel(logging.CRITICAL)  # what a model makes constant is told at length
    try:
        if own:
            from tests.models import MODELS

            make, named = MODELS[name].make, None
        else:
            from tests.zoo import worker

            missing = worker._prepare(name)
            if missing:
                return {**result, "message": missing}
            make = lambda seed=0: worker._build(name, seed)  # noqa: E731
            named = entries.registry().REG[name].dynamic
        make()
    except Exception as error:
        return {**result, "message": first_line(error)[:160]}
    try:
        result.update(analyse(make, named))
        if also_run and isinstance(named, dict):
            result["run"] = run(make, named)
    except Exception as error:
        import traceback

        result.update(status="crash", message=first_line(error)[:200], trace=traceback.format_exc())
    return result


# --------------------------------------------------------------------------------------------- the survey


def survey(names: list[str], own: bool, also_run: bool) -> Iterator[dict[str, Any]]:
    """The result of each entry, computed in a fork of this process."""
    _preload("fxrewrite")
    return forked.each(names, lambda name: one(name, own, also_run), TIMEOUT)


def line(result: dict[str, Any]) -> str:
    verdicts = Counter(result.get("verdicts") or {})
    unknown = sum(n for key, n in verdicts.items() if key.endswith(" unknown"))
    text = f"{result['status']:10} {result['entry']:34}"
    if "sites" in result:
        text += (
            f" {result['matched']:3}/{result['sites']:3} sites, {result['symbolic']:3} symbolic, "
            f"{unknown:3} of {verdicts.total():4} guards unknown"
        )
    if "run" in result:
        ran = result["run"]
        text += (
            f"; {len(ran['ran'])} sizes, {ran['compilations']} compilations "
            f"({ran['by_dynamo']} by Dynamo itself), {len(ran['wrong'])} wrong {ran['wrong'][:1] or ''}"
        )
    for fault in (result.get("faults") or [])[:1]:
        text += f"  FAULT {fault[:120]}"
    return text + (f"  {result['message'][:140]}" if result.get("message") else "")


def summary(results: list[dict[str, Any]]) -> list[str]:
    statuses = Counter(r["status"] for r in results)
    out = [", ".join(f"{n} {status}" for status, n in statuses.most_common())]
    verdicts: Counter[str] = Counter()
    residuals: Counter[str] = Counter()
    for result in results:
        verdicts.update(result.get("verdicts") or {})
        residuals.update(result.get("residuals") or {})
    for family in sorted({key.split()[0] for key in verdicts}):
        counts = {v: verdicts[f"{family} {v}"] for v in ("proved", "refuted", "unknown")}
        total = sum(counts.values())
        out.append(
            f"  {family:17} {total:6} guards: {100 * counts['unknown'] / total:5.1f} % unknown, {counts}"
        )
    out += [f"  unknown {n:4} x {guard}" for guard, n in residuals.most_common(12)]
    runs = [r["run"] for r in results if "run" in r]
    if runs:
        out.append(
            f"{len(runs)} entries run, {sum(len(r['ran']) >= 5 for r in runs)} of them at 5 sizes or more; "
            f"{sum(r['compilations'] > r['by_dynamo'] for r in runs)} with more compilations than Dynamo's own; "
            f"{sum(bool(r['wrong']) for r in runs)} wrong"
        )
    return out


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.zoo.dynamic",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="*", help="comma-separated name patterns")
    parser.add_argument("--own", action="store_true", help="the repository's own models")
    parser.add_argument("--run", action="store_true", help="run at several sizes too")
    parser.add_argument("--json", help="write all results to this file")
    options = parser.parse_args(argv)
    if options.own:
        from tests.models import MODELS

        names = list(MODELS)
    elif entries.present():
        names = entries.names()
    else:
        print(entries.MISSING, file=sys.stderr)
        return 2
    names = [n for n in names if any(fnmatch.fnmatch(n, p) for p in options.only.split(","))]
    results = []
    for result in survey(names, options.own, options.run):
        results.append(result)
        print(line(result), flush=True)
        if options.json:
            Path(options.json).write_text(json.dumps(results, indent=1, default=str))
    print("\n".join(summary(results)))
    bad = [r for r in results if r["status"] in ("crash", "error") or r.get("faults") or r.get("notes")]
    bad += [r for r in results if r.get("run") and r["run"]["wrong"]]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
