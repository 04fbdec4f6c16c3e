"""fxrewrite among its peers, case by case: what is reached against the machine, the target and the best peer.

    python tests/benchmarks/bench_peers.py PATH/TO/peer_ops.py [options of peer_ops.py: --op linear --case M=1, ...]

Runs eager PyTorch, the reading of the same bytes and fxrewrite interleaved, on one thread's CPU time. Times
are multiples of the base: the read-only floor of the same run where memory-bound, else the ideal time at
the peaks that ceilings.c, which lies beside peer_ops.py, finds now. ``peers.csv`` holds the recorded figures: eager's and the
best peer's multiple, and the one to reach.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FLOOR = "read_only_floor"
LEVEL_UP_TO = 1.10  # targets up to here hold within 3 % of the best peer, whose weights are packed ahead


def ceilings(source: Path, seconds: float = 0.1) -> dict[str, float]:
    """GFLOP/s of one thread for "bf16" and "fp32", and GB/s read from memory ("memory"): ``source`` is ceilings.c.

    On the thread's CPU time, as what is held against them: another process on the core changes neither.
    """
    text = source.read_text().replace("CLOCK_MONOTONIC", "CLOCK_THREAD_CPUTIME_ID")
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "ceilings")
        compiler = ["cc", "-O3", "-pthread", "-x", "c", "-", "-o", program]
        subprocess.run(compiler, check=True, input=text, text=True)
        out = subprocess.run([program, "1", str(seconds)], check=True, capture_output=True, text=True).stdout
    found: dict[str, float] = {}
    for line in out.splitlines():
        best = re.search(r"best\s+([\d.]+)", line)
        if best is None:
            continue
        if line.startswith("bf16"):
            found["bf16"] = float(best[1])
        elif line.startswith("fp32"):
            found["fp32"] = max(found.get("fp32", 0.0), float(best[1]))
        elif line.startswith("read") and "(memory)" in line:
            found["memory"] = float(best[1])
    found.setdefault("bf16", found["fp32"])  # without its instructions, products of bf16 are those of fp32
    return found


def measured(peer_ops: Path, peaks: list[str], further: list[str]) -> list[dict[str, Any]]:
    """The cases of one run of the peers' benchmark."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "peers.json"
        command = [
            sys.executable,
            str(peer_ops),
            "--plugin",
            str(HERE / "peer_plugin.py"),
            "--groups",
            "torch",
        ]
        command += ["--impl", f"^(eager|fxrewrite|{FLOOR})$", "--threads", "1", "--clock", "cpu"]
        subprocess.run(
            [*command, *peaks, *further, "--json", str(out)], check=True, stdout=subprocess.DEVNULL
        )
        return json.loads(out.read_text())["cases"]


def line(case: dict[str, Any], recorded: dict[str, str]) -> str:
    least = {row["impl"]: row["min_ms"] for row in case["rows"]}
    middle = {row["impl"]: row["median_ms"] for row in case["rows"]}
    floor = recorded["base"] == "floor"
    base = least.get(FLOOR) if floor else case["ideal_ms"]
    if base is None or "fxrewrite" not in least:
        return f"{case['case']:<36} {case['skipped'].get('fxrewrite', 'no base')}"
    ours, eager = least["fxrewrite"] / base, least["eager"] / base
    median = middle["fxrewrite"] / (middle[FLOOR] if floor else base)
    target, peer = float(recorded["target"]), float(recorded["best_peer"])
    level = target <= LEVEL_UP_TO and ours <= peer * 1.03
    verdict = "holds" if ours <= target else "level" if level else "misses"
    errors = {row["impl"]: row["err"] for row in case["rows"]}
    return (
        f"{case['case']:<36} {recorded['base']:>5} {ours:>7.2f} {median:>7.2f} {target:>7.2f} {peer:>9.2f} {eager:>7.2f}"
        f" {eager / ours:>8.2f} {errors['fxrewrite'] / errors['eager']:>6.2f}  {verdict}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("peer_ops", type=Path)
    arguments, further = parser.parse_known_args()
    found = ceilings(arguments.peer_ops.with_name("ceilings.c"))
    names = {"--peak-bf16": "bf16", "--peak-fp32": "fp32", "--bandwidth": "memory"}
    peaks = [text for option, name in names.items() for text in (option, str(found[name]))]
    print(
        f"one thread: {found['bf16']:.0f} GFLOP/s bf16, {found['fp32']:.0f} fp32, {found['memory']:.1f} GB/s"
    )
    with open(HERE / "peers.csv", newline="") as file:
        recorded = {row["case"]: row for row in csv.DictReader(file)}
    print(
        f"{'case':<36} {'base':>5} {'ours':>7} {'median':>7} {'target':>7} {'best peer':>9} {'eager':>7} {'x eager':>8} {'error':>6}"
    )
    for case in measured(arguments.peer_ops, peaks, further):
        print(line(case, recorded[case["case"]]))


if __name__ == "__main__":
    main()
