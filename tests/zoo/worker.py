"""One zoo entry: build, run eagerly, in float64 and rewritten, compare, count sites. Has its own process."""

from __future__ import annotations

import contextlib
import time
import traceback
from typing import Any

SEED = 1234
POOL_SEEDS = (1, 2, 3, 4)  # when seed 0 exceeds the RMS bound, the errors of these are pooled with it

# relative RMS difference of eager and float64 above which the reference is called weak
EXPECTED_ERROR = {"torch.float32": 1e-3, "torch.bfloat16": 0.15, "torch.float16": 0.03}


def _build(name: str, seed: int):
    from .entries import registry

    return registry().REG[name].make(seed=seed)


def _run(callable_, args, kwargs):
    import torch

    torch.manual_seed(SEED)
    with torch.no_grad():
        return callable_(*args, **kwargs)


def _snapshot(model) -> dict[str, Any]:
    return {k: v.detach().clone() for k, v in model.state_dict().items()}


def _same(a, b) -> bool:
    import torch

    if not isinstance(a, torch.Tensor):
        return a is b or a == b
    if type(a) is not type(b) or a.shape != b.shape or a.dtype != b.dtype:
        return False
    if type(a) not in (torch.Tensor, torch.nn.Parameter):
        return True  # a quantised subclass: its own equality is not defined
    if a.dtype.itemsize == 1:
        return torch.equal(a.view(torch.uint8), b.view(torch.uint8))
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


def _changed(where: str, before: list, after: list) -> str | None:
    if len(before) != len(after):
        return f"{where}: {len(before)} values before, {len(after)} after"
    for (path, a), (_, b) in zip(before, after, strict=True):
        if not _same(a, b):
            return f"{path} was changed by {where}"
    return None


def measure_reference(name: str) -> dict[str, Any]:
    """How well the float64 reference of an entry agrees with eager."""
    from tests.support import contract, float64

    result: dict[str, Any] = {"entry": name}
    try:
        _prepare(name)
        model, args, kwargs = _build(name, 0)
        eager = _run(model, args, kwargs)
    except Exception as error:
        return {**result, "reference": "no eager run", "why": _first_line(error)}
    try:
        exact = float64.run_float64(*_build(name, 0))
        scores = contract.score(eager, eager, exact)
    except Exception as error:
        result.update(reference="none", why=_first_line(error), trace=traceback.format_exc())
        return result
    relative = max((s.eager_relative for s in scores), default=0.0)
    limit = EXPECTED_ERROR[str(_entry_dtype(name))]
    result.update(reference="good" if relative <= limit else "weak", relative=relative)
    return result


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _prepare(name: str) -> str | None:
    """Make the entry's packages importable; what is missing, or None."""
    import torch

    from tests.support.stubs import stub_torchvision

    from .entries import registry

    torch.set_num_threads(1)
    zoo = registry()
    if name.startswith("timm"):
        stub_torchvision()
    return zoo.available(zoo.REG[name])


def _entry_dtype(name: str):
    from .entries import registry

    zoo = registry()
    return zoo.DT[zoo.REG[name].dtype]


def _trial(name: str, subject, seed: int, result: dict[str, Any], clock: dict[str, float]):
    """One seed: returns (scores, reference kind). Raises ContractError, or whatever the rewrite raises."""
    import torch

    from tests.support import contract, float64
    from tests.support.subject import silent_rejections, site_counts

    @contextlib.contextmanager
    def timed(what: str):
        began = time.perf_counter()
        try:
            yield
        finally:
            clock[what] = round(clock.get(what, 0.0) + time.perf_counter() - began, 3)

    result["stage"] = "build"
    with timed("build"):
        model, args, kwargs = _build(name, seed)
        fresh_args = list(contract.leaves((args, kwargs), "input"))
        fresh_args = [(p, v.clone() if isinstance(v, torch.Tensor) else v) for p, v in fresh_args]
    result["stage"] = "eager"
    with timed("eager"):
        eager = _run(model, args, kwargs)
    inputs_after_eager = list(contract.leaves((args, kwargs), "input"))
    result["stage"] = "reference"
    with timed("reference"):
        try:
            exact = float64.run_float64(*_build(name, seed))
            kind = "good"
        except Exception as error:
            exact, kind = eager, f"none ({_first_line(error)})"
    result["reference"] = kind

    result["stage"] = "rewrite"
    model, args, kwargs = _build(name, seed)
    before = _snapshot(model)
    training = [m.training for m in model.modules()]
    with timed("rewrite"), torch.no_grad():
        torch._dynamo.reset()
        new, report = subject(model, args, kwargs)
    problem = _changed("rewrite()", fresh_args, list(contract.leaves((args, kwargs), "input")))
    if problem:
        raise contract.ContractError(problem)
    result["stage"] = "run"
    with timed("run"):
        ours = _run(new, args, kwargs)
    if report is not None and "sites" not in result:
        result["sites"] = site_counts(report)
        result["notes"] = list(report.notes)
        reasons: dict[str, int] = {}
        for site in report.sites:
            if site.status == "rejected":
                key = f"{site.kind}: {site.reason}"
                reasons[key] = reasons.get(key, 0) + 1
        result["reasons"] = dict(sorted(reasons.items(), key=lambda item: -item[1])[:12])
        silent = silent_rejections(report)
        if silent:
            raise contract.ContractError(f"rejected without a reason: {silent[:3]}")
    result["stage"] = "compare"
    if "layerwise" not in name:  # those hooks change the parameters' dtype on every call, in eager too
        now = _snapshot(model)
        if list(before) != list(now):
            raise contract.ContractError("the model's state_dict keys were changed")
        buffers_may_change = {k for k, v in before.items() if not _same(v, now[k])}
        if buffers_may_change:
            again, a, k = _build(name, seed)  # eager may change its own state (static caches)
            _run(again, a, k)
            eager_state = _snapshot(again)
            for key in buffers_may_change:
                if _same(eager_state[key], before[key]):
                    raise contract.ContractError(f"the model's {key} was changed")
    if training != [m.training for m in model.modules()]:
        raise contract.ContractError("the model's training flags were changed")
    problem = None
    after = list(contract.leaves((args, kwargs), "input"))
    if len(after) != len(inputs_after_eager):
        problem = "inputs after the call differ in number from eager's"
    for (path, a), (_, b) in zip(after, inputs_after_eager, strict=False):
        if isinstance(a, torch.Tensor) and (a.shape != b.shape or a.dtype != b.dtype):
            problem = f"{path} after the call: {a.dtype}{tuple(a.shape)}, eager has {b.dtype}{tuple(b.shape)}"
    if problem:
        raise contract.ContractError(problem)
    return contract.score(ours, eager, exact), kind, exact is eager


def run_entry(name: str, subject_name: str = "fxrewrite") -> dict[str, Any]:
    """The result of one entry as plain data; never raises (a crash of the process is the caller's to see)."""
    result: dict[str, Any] = {"entry": name, "subject": subject_name, "status": "skip", "message": ""}
    began = time.perf_counter()
    clock: dict[str, float] = {}
    try:
        from tests.support import contract
        from tests.support.subject import SUBJECTS

        missing = _prepare(name)
        if missing:
            result["message"] = missing
            return result
        scores, kind, against_eager = _trial(name, SUBJECTS[subject_name], 0, result, clock)
        seeds = 1
        if not against_eager and not all(s.ok for s in scores):
            result["ratio_one_seed"] = max(s.ratio for s in scores)
            for seed in POOL_SEEDS:
                more, _, _ = _trial(name, SUBJECTS[subject_name], seed, result, clock)
                for mine, other in zip(scores, more, strict=True):
                    mine.add(other)
                seeds += 1
        limit = EXPECTED_ERROR[str(_entry_dtype(name))]
        relative = max((s.eager_relative for s in scores), default=0.0)
        if against_eager or relative > limit:
            _near_eager(scores, 2 * limit)  # two runs, each with that error
        worst = max(scores, key=lambda s: s.ratio, default=None)
        result.update(
            reference="weak" if kind == "good" and relative > limit else kind,
            relative=relative,
            ratio=None if against_eager or worst is None else worst.ratio,
            bit_equal=all(s.bit_equal for s in scores),
            seeds=seeds,
        )
        if not against_eager:
            contract.require(scores)
        result.update(status="sound")
    except BaseException as error:
        if result.get("stage") in ("build", "eager"):
            result.update(status="skip", message=f"{result['stage']}: {_first_line(error)}")
        elif type(error).__name__ == "ContractError":
            result.update(status="breach", message=str(error), trace=traceback.format_exc())
        else:
            message = f"{result.get('stage')}: {_first_line(error)}"
            result.update(status="error", message=message, trace=traceback.format_exc())
    finally:
        result.pop("stage", None)
        result["clock"] = clock
        result["seconds"] = round(time.perf_counter() - began, 2)
    return result


def _near_eager(scores, limit: float) -> None:
    """Where float64 tells little (no reference, or eager itself is far off it because it rounds a time step
    or routes by rounded values), the output must also be near eager's."""
    from tests.support.contract import ContractError

    for s in scores:
        if s.apart > limit:
            raise ContractError(f"{s.where}: {s.apart:.3g} of its size away from eager (allowed {limit:g})")
