"""Measure a rewriting pass on the model zoo: sites found, contract kept, seconds taken.

    python -m tests.zoo.measure                          every entry, two at a time
    python -m tests.zoo.measure --only 'flux*,sana*'     some entries (comma-separated patterns)
    python -m tests.zoo.measure --json out.json          results as data too
    python -m tests.zoo.measure --failed out.json        only what failed in that file
    python -m tests.zoo.measure --json out.json --resume what that file does not have yet
    python -m tests.zoo.measure --subject identity       prove the harness: eager against itself
    python -m tests.zoo.measure --reference              how good the float64 references are
    python -m tests.zoo.measure --one NAME               in this process, with traces (for a debugger)

One line an entry. The columns of sites are found/expected, and in parentheses how many matched;
`ratio` is the RMS error against float64 over eager's own (the contract: at most 1.25), "=" bit-equal.
Each entry runs in its own forked process with a time limit: a crash costs that entry only.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import pkgutil
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from . import entries
from .forked import collect

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 180.0
PRELOAD = (
    "torch._dynamo",
    "torch.export",
    "diffusers.models.attention_processor",
    "transformers.masking_utils",
    "transformers.models.llama.modeling_llama",
)
FAMILY_HEADS = {
    "fused": "sdpa", "manual": "manual", "linear": "linear", "fp8": "fp8", "linear_attention": "linattn",
}  # fmt: skip


# ---------------------------------------------------------------- the forking server (a child process)


def _preload(subject: str) -> None:
    import importlib

    import torch

    torch.set_num_threads(1)
    for name in PRELOAD:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    entries.registry()
    importlib.import_module("tests.zoo.worker")
    importlib.import_module("tests.support.soundness")
    if subject in ("fxrewrite", "backend"):
        with contextlib.suppress(Exception):  # each entry then says why
            # All of it now: what is edited during a run must not be mixed with what was imported before.
            for name in ("fxrewrite", "fxrewrite.patterns"):  # which lies elsewhere
                package = importlib.import_module(name)
                for module in pkgutil.walk_packages(package.__path__, f"{name}."):
                    if not module.name.endswith("__main__"):
                        with contextlib.suppress(Exception):
                            importlib.import_module(module.name)


def _serve(subject: str) -> None:
    protocol = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _preload(subject)
    protocol.write("ready\n")
    protocol.flush()
    for line in sys.stdin:
        job = json.loads(line)
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read_end)
            status = 1
            try:
                os.setpgid(0, 0)
                from tests.zoo import worker

                run = worker.measure_reference if job["reference"] else lambda n: worker.run_entry(n, subject)
                with os.fdopen(write_end, "w") as pipe:
                    json.dump(run(job["entry"]), pipe, default=str)
                status = 0
            finally:
                os._exit(status)
        os.close(write_end)
        protocol.write(json.dumps(collect(job, pid, read_end)) + "\n")
        protocol.flush()


class Server:
    """A child process that has the libraries imported and forks once an entry."""

    def __init__(self, subject: str = "fxrewrite", log: Path | None = None) -> None:
        self.subject, self.log, self.process = subject, log, None

    def _start(self) -> None:
        stderr = open(self.log, "a") if self.log else subprocess.DEVNULL  # noqa: SIM115
        env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.zoo.measure", "--serve", "--subject", self.subject],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=ROOT, env=env,
        )  # fmt: skip
        if self.process.stdout.readline().strip() != "ready":
            raise RuntimeError("the measuring process did not start: see --one NAME, or --log FILE")

    def run(self, name: str, timeout: float = TIMEOUT, reference: bool = False) -> dict[str, Any]:
        if self.process is None or self.process.poll() is not None:
            self._start()
        job = {"entry": name, "timeout": timeout, "reference": reference}
        try:
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
            return json.loads(self.process.stdout.readline())
        except (OSError, ValueError):
            self.close()
            return {"entry": name, "status": "error", "message": "the measuring process died", "seconds": 0.0}

    def close(self) -> None:
        if self.process is not None:
            self.process.stdin.close()
            self.process.terminate()
            self.process.wait()
            self.process = None


def run_all(
    names: Iterable[str],
    subject: str = "fxrewrite",
    jobs: int = 2,
    timeout: float = TIMEOUT,
    log: Path | None = None,
    reference: bool = False,
) -> Iterator[dict[str, Any]]:
    """Results of all entries, as they come."""
    todo: queue.SimpleQueue[str] = queue.SimpleQueue()
    names = list(names)
    for name in names:
        todo.put(name)
    done: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def work() -> None:
        server = Server(subject, log)
        while True:
            try:
                name = todo.get_nowait()
            except queue.Empty:
                break
            try:
                done.put(server.run(name, timeout, reference))
            except Exception as error:
                done.put({"entry": name, "status": "error", "message": str(error), "seconds": 0.0})
        server.close()

    for _ in range(min(jobs, len(names))):
        threading.Thread(target=work, daemon=True).start()
    for _ in names:
        yield done.get()


# ---------------------------------------------------------------- tables


def families(result: dict[str, Any]) -> dict[str, tuple[int, int, int, int]] | None:
    """{family: (found, expected to reach the backend, in the eager model, matched)} of one result."""
    want = entries.expected(result["entry"])
    if want is None or "sites" not in result:
        return None
    found = entries.found(result["entry"], result["sites"])
    matched = entries.found(result["entry"], result["sites"], matched_only=True)
    return {f: (found[f], want.reach[f], want.eager[f], matched[f]) for f in entries.FAMILIES}


def line(result: dict[str, Any]) -> str:
    sites = families(result)
    cells = []
    for family, head in FAMILY_HEADS.items():
        if sites is None:
            continue
        found, reach, eager, matched = sites[family]
        if eager:
            short = "" if reach == eager else f"[{eager}]"
            flag = "!" if found < reach else ""
            cells.append(f"{head} {found}/{reach}{short}({matched}){flag}")
    ratio = result.get("ratio")
    if result.get("bit_equal"):
        text = "="
    elif ratio is None:
        text = "no-ref" if result["status"] == "sound" else "-"
    else:
        text = f"{ratio:.2f}" + ("~" if result.get("reference") == "weak" else "")
    if result.get("seeds", 1) > 1:
        text += f"/{result['seeds']}s"
    status = result["status"].upper() if result["status"] in ("breach", "error") else result["status"]
    message = f"  {result['message'][:160]}" if result.get("message") else ""
    seconds = f"{result.get('seconds', 0):6.1f}s"
    return f"{status:6} {result['entry']:34} {text:9} {seconds}  {'  '.join(cells)}{message}"


def summary(results: list[dict[str, Any]]) -> list[str]:
    """Soundness count, recall by family, and the commonest failures and rejections."""
    by_status = Counter(r["status"] for r in results)
    tried = len(results) - by_status["skip"]
    out = [f"{by_status['sound']} of {tried} entries sound, {by_status['skip']} skipped"]
    skipped = Counter(r["message"] for r in results if r["status"] == "skip")
    out += [f"  skipped {n}: {why}" for why, n in skipped.most_common()]
    messages = Counter(
        f"{r['status']}: {r['message'][:140]}" for r in results if r["status"] in ("breach", "error")
    )  # fmt: skip
    out += [f"  {n} x {text}" for text, n in messages.most_common(25)]
    slowest = sorted(results, key=lambda r: -r.get("cpu", 0.0))[:3]
    out.append(
        f"{sum(r.get('cpu', 0.0) for r in results):.0f} s of CPU time; the slowest: "
        + ", ".join(f"{r['entry']} {r.get('cpu', 0.0):.0f} s" for r in slowest)
    )
    ratios = sorted(r["ratio"] for r in results if r.get("ratio") is not None)
    if ratios:
        equal = sum(bool(r.get("bit_equal")) for r in results)
        out.append(
            f"RMS error over eager's: median {ratios[len(ratios) // 2]:.3f}, highest {ratios[-1]:.3f}; "
            f"{equal} bit-equal; {sum(r.get('reference') == 'weak' for r in results)} weak and "
            f"{sum(str(r.get('reference', '')).startswith('none') for r in results)} missing references"
        )
    total: dict[str, list[int]] = {f: [0, 0, 0, 0] for f in entries.FAMILIES}
    counted = 0
    for result in results:
        sites = families(result)
        if sites is not None:
            counted += 1
            for family, (found, reach, eager, matched) in sites.items():
                numbers = (
                    min(found, reach),
                    reach,
                    eager,
                    matched,
                )  # one entry's surplus hides no other's gap
                total[family] = [a + b for a, b in zip(total[family], numbers, strict=True)]
    if counted:
        out.append(
            f"sites of {counted} entries: found / reach a Dynamo backend / in the eager model, matched"
        )
        for family, (found, reach, eager, matched) in total.items():
            share = f"{100 * found / reach:5.1f} %" if reach else "    -  "
            out.append(f"  {family:17} {found:5} / {reach:5} / {eager:5}  {share}  matched {matched}")
        reasons: Counter[str] = Counter()
        for result in results:
            reasons.update(result.get("reasons") or {})
        out += [f"  rejected {n:4} x {text[:150]}" for text, n in reasons.most_common(15)]
    return out


def _reference_report(results: list[dict[str, Any]]) -> list[str]:
    kinds = Counter(r.get("reference", "error") for r in results)
    out = [", ".join(f"{n} {kind}" for kind, n in kinds.most_common())]
    for r in results:
        if r.get("reference") != "good":
            difference = f"relative difference {r.get('relative', float('nan')):.3g}"
            why = r.get("why") or r.get("message") or difference
            out.append(f"  {r['entry']:36} {r.get('reference', 'error'):6} {why[:150]}")
    return out


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.zoo.measure",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="*", help="comma-separated name patterns")
    parser.add_argument("--failed", help="only entries that were not sound in this JSON file")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds an entry may take")
    parser.add_argument("--json", help="write all results to this file")
    parser.add_argument("--resume", action="store_true", help="keep the results that --json's file has")
    parser.add_argument("--log", help="append what the entries print to this file")
    parser.add_argument("--subject", default="fxrewrite")
    parser.add_argument("--reference", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if not entries.present():
        print(entries.MISSING, file=sys.stderr)
        return 2
    if options.serve:
        _serve(options.subject)
        return 0
    if options.one:
        from . import worker

        if options.reference:
            result = worker.measure_reference(options.one)
        else:
            result = worker.run_entry(options.one, options.subject)
        print(result.pop("trace", ""))
        print(json.dumps(result, indent=2, default=str))
        if not options.reference:
            print(line(result))
        return 0
    names = [n for n in entries.names() if any(fnmatch.fnmatch(n, p) for p in options.only.split(","))]
    if options.failed:
        before = json.loads(Path(options.failed).read_text())
        bad = {r["entry"] for r in before if r["status"] not in ("sound", "skip")}
        names = [n for n in names if n in bad]
    if not names:
        print("no entry has such a name", file=sys.stderr)
        return 2
    began, results = time.monotonic(), []
    if options.resume and options.json and Path(options.json).exists():
        results = json.loads(Path(options.json).read_text())
        names = [n for n in names if n not in {r["entry"] for r in results}]
    total = len(results) + len(names)
    log = Path(options.log) if options.log else None
    for result in run_all(names, options.subject, options.jobs, options.timeout, log, options.reference):
        results.append(result)
        if not options.reference:
            print(f"{len(results):3}/{total} {line(result)}", flush=True)
        if options.json:
            Path(options.json).write_text(json.dumps(results, indent=1, default=str))
    print(f"\n{time.monotonic() - began:.0f} s")
    print("\n".join(_reference_report(results) if options.reference else summary(results)))
    return 0 if all(r.get("status") in ("sound", "skip", None) for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
