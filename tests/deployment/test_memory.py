"""Weights are read where they are: a rewritten model takes the memory of the original."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fxrewrite

RUN = """
import resource, sys, torch
from torch import nn
if sys.argv[1] == "rewritten":
    import fxrewrite
import torch._dynamo  # the compiler's own code is not the weights'
width, layers = 4096, 32  # 32 x 4096 x 4096 of bfloat16: 1 GiB
model = nn.Sequential(*(nn.Linear(width, width, bias=False, dtype=torch.bfloat16) for _ in range(layers))).eval()
x = torch.randn(4, width).bfloat16()
with torch.no_grad():
    if sys.argv[1] == "rewritten":
        model = fxrewrite.rewrite(model, (x,))
    for _ in range(3):
        model(x)
    if sys.argv[1] == "rewritten":
        assert len(model.report.matched) == layers, model.report
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""


def peak(which: str) -> float:
    """Peak memory of the whole process, in GiB."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, which],
        cwd=Path(fxrewrite.__path__[0]).parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return float(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux only")
def test_peak_memory_of_a_gibibyte_of_weights():
    eager, ours = peak("eager"), peak("rewritten")
    assert eager > 1.0
    assert ours <= 1.05 * eager, f"{ours:.2f} GiB against {eager:.2f}"
