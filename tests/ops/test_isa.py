"""Which instruction set runs: detection, the cap, and the kernels' tests at every level below this one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fxrewrite.ops
from fxrewrite.ops.isa import active_isa, detected_isa

ROOT = Path(__file__).parents[2]
LEVELS = ["portable", "avx2", "avx512", "avx512_bf16"]
native = pytest.mark.skipif(fxrewrite.ops.native_missing is not None, reason="no native library")
PRINT = (
    "from fxrewrite.ops import native_missing, isa;"
    "print(native_missing, isa.active_isa(), isa.detected_isa())"
)


def run(level: str, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "FXREWRITE_ISA": level}
    return subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, cwd=ROOT, check=False
    )


@native
def test_levels_are_ordered():
    assert active_isa() in LEVELS
    assert LEVELS.index(active_isa()) <= LEVELS.index(detected_isa())


@native
@pytest.mark.parametrize("level", LEVELS)
def test_cap(level):
    best = LEVELS[min(LEVELS.index(level), LEVELS.index(detected_isa()))]
    assert run(level, "-c", PRINT).stdout.split() == ["None", best, detected_isa()]


def test_none_switches_the_native_library_off():
    use = "import torch; print(torch.ops.fxrewrite.linear(torch.ones(1, 2), torch.ones(3, 2)).tolist())"
    done = run("none", "-c", f"{PRINT}; {use}")
    assert done.stdout.splitlines() == ["switched off by FXREWRITE_ISA=none none none", "[[2.0, 2.0, 2.0]]"]


@native
def test_unknown_level_is_a_clear_error():
    done = run("avx513", "-c", PRINT)
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1] == (
        "ValueError: FXREWRITE_ISA=avx513 is not an instruction set; "
        "known are portable, avx2, avx512, avx512_bf16, none"
    )


@native
@pytest.mark.parametrize(
    "level", ["portable", *(pytest.param(level, marks=pytest.mark.slow) for level in LEVELS[1:-1])]
)
def test_kernels_at(level):
    """The tests of this directory's kernels again, capped."""
    if LEVELS.index(level) >= LEVELS.index(active_isa()):
        pytest.skip(f"the other tests run at {active_isa()}")
    names = ["linear", "fp8_linear", "sdpa", "relu_linear_attention"]
    files = [f"tests/ops/test_{name}.py" for name in names]
    done = run(level, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files)
    assert done.returncode == 0, done.stdout
