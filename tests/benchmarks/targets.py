"""The lines of the peers' benchmark (../shared/bench beside the repository): cases, targets, records, ceilings.

A line's figure is a multiple of its base: what the machine needs at least, FLOPs over the peak of the
products' types, or, where memory binds, the time in which the same run sums the same bytes.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

BENCH = Path(__file__).resolve().parents[2].parent / "shared" / "bench"


@dataclass(frozen=True)
class Line:
    """One row of targets.md; figures are multiples of the base."""

    case: str
    eager: float
    best_peer: float
    target: float
    peer: str  # the peer of the best figure, from results.md


def lines() -> list[Line]:
    """The rows of targets.md, in order. Raises `FileNotFoundError` where the folder is missing."""
    peers = {row[0]: row[3].split(",")[0].rsplit(" ", 1)[0] for row in _table("results.md")}
    return [
        Line(case, float(eager), float(peer), float(target), peers.get(case, "?"))
        for case, _, eager, peer, target, *_ in _table("targets.md")
    ]


def _table(name: str) -> list[list[str]]:
    rows = [line for line in (BENCH / name).read_text().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"\|", row)[1:-1]] for row in rows[2:]]


def peer_ops() -> ModuleType:
    """The module that defines the cases, their inputs, and what eager does for them."""
    spec = importlib.util.spec_from_file_location("peer_ops", BENCH / "peer_ops.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["peer_ops"] = module
    spec.loader.exec_module(module)
    return module


def ceilings(seconds: float = 0.1) -> dict[str, float]:
    """GFLOP/s of one thread for "bf16" and "fp32", and GB/s read from memory ("memory"): ceilings.c, run now.

    On the thread's CPU time, as what is held against them: another process on the core changes neither.
    """
    source = (BENCH / "ceilings.c").read_text().replace("CLOCK_MONOTONIC", "CLOCK_THREAD_CPUTIME_ID")
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "ceilings")
        compiler = ["cc", "-O3", "-pthread", "-x", "c", "-", "-o", program]
        subprocess.run(compiler, check=True, input=source, text=True)
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
