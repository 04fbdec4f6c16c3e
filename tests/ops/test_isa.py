"""Which instruction set runs: detection, the cap, and the kernels' tests at every level below this one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fxrewrite.ops
from fxrewrite.ops.isa import active_isa, amx_obstacle, detected_isa
from tests.support import amx

ROOT = Path(__file__).parents[2]
LEVELS = ["portable", "avx2", "avx512", "avx512_bf16", "amx_bf16"]
KERNELS = [f"tests/ops/test_{name}.py" for name in ("linear", "fp8_linear", "sdpa", "relu_linear_attention")]
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
        "known are portable, avx2, avx512, avx512_bf16, amx_bf16, none"
    )


@native
def test_what_stands_in_the_way_of_amx():
    assert (amx_obstacle() is None) == (detected_isa() == "amx_bf16")


@native
@pytest.mark.parametrize(
    "level", ["portable", *(pytest.param(level, marks=pytest.mark.slow) for level in LEVELS[1:-1])]
)
def test_kernels_at(level):
    """The tests of this directory's kernels again, capped."""
    if LEVELS.index(level) >= LEVELS.index(active_isa()):
        pytest.skip(f"the other tests run at {active_isa()}")
    done = run(level, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *KERNELS)
    assert done.returncode == 0, done.stdout


emulated = pytest.mark.skipif(
    not amx.LIBRARY.exists() or detected_isa() not in LEVELS[3:],
    reason="the AMX emulator is not built, or the rest of the level is missing",
)


@native
@emulated
def test_emulator_gives_the_level():
    load = "from tests.support import amx; amx.load();"
    assert run("amx_bf16", "-c", load + PRINT).stdout.split() == ["None", "amx_bf16", "amx_bf16"]
    assert run("avx512_bf16", "-c", load + PRINT).stdout.split() == ["None", "avx512_bf16", "amx_bf16"]


@native
@emulated
@pytest.mark.parametrize(
    "files", [["tests/ops/test_amx.py"], pytest.param(KERNELS, marks=pytest.mark.slow, id="all")]
)
def test_kernels_on_emulated_amx(files):
    """The same tests where tile instructions are executed by the emulator."""
    done = run(
        "amx_bf16", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "tests.support.amx", *files
    )
    assert done.returncode == 0, done.stdout
