"""fxrewrite among its peers, case by case: what is reached against the machine, the target and the best peer.

    python tests/benchmarks/bench_peers.py PATH/TO/peer_ops.py [--peak-bf16 233 --peak-fp32 117 --bandwidth 20]
                                           [further options of peer_ops.py: --op linear --case M=1, ...]

Runs eager PyTorch, the reading of the same bytes and fxrewrite interleaved, on one thread's CPU time. Times
are multiples of the base: the read-only floor of the same run where memory-bound, else the ideal time at
the peaks given (GFLOP/s and GB/s of this machine). ``peers.csv`` holds the recorded figures: eager's and the
best peer's multiple, and the one to reach.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FLOOR = "read_only_floor"


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
    floor = recorded["base"] == "floor"
    base = least.get(FLOOR) if floor else case["ideal_ms"]
    if base is None or "fxrewrite" not in least:
        return f"{case['case']:<36} {case['skipped'].get('fxrewrite', 'no base')}"
    ours, eager = least["fxrewrite"] / base, least["eager"] / base
    target, peer = float(recorded["target"]), float(recorded["best_peer"])
    verdict = "holds" if ours <= target else "level" if ours <= peer * 1.03 else "misses"
    errors = {row["impl"]: row["err"] for row in case["rows"]}
    return (
        f"{case['case']:<36} {recorded['base']:>5} {ours:>7.2f} {target:>7.2f} {peer:>9.2f} {eager:>7.2f}"
        f" {eager / ours:>8.2f} {errors['fxrewrite'] / errors['eager']:>6.2f}  {verdict}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("peer_ops", type=Path)
    parser.add_argument("--peak-bf16", default="233")
    parser.add_argument("--peak-fp32", default="117")
    parser.add_argument("--bandwidth", default="20")
    arguments, further = parser.parse_known_args()
    peaks = ["--peak-bf16", arguments.peak_bf16, "--peak-fp32", arguments.peak_fp32]
    with open(HERE / "peers.csv", newline="") as file:
        recorded = {row["case"]: row for row in csv.DictReader(file)}
    print(
        f"{'case':<36} {'base':>5} {'ours':>7} {'target':>7} {'best peer':>9} {'eager':>7} {'x eager':>8} {'error':>6}"
    )
    for case in measured(arguments.peer_ops, [*peaks, "--bandwidth", arguments.bandwidth], further):
        print(line(case, recorded[case["case"]]))


if __name__ == "__main__":
    main()
