"""``fxrewrite doctor``: what it says of a sound installation, and of faults."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
import torch
from click.testing import CliRunner, Result

from fxrewrite import ops
from fxrewrite.cli import main
from fxrewrite.ops.implementations import BF16_LEVELS
from fxrewrite.ops.isa import active_isa
from fxrewrite.ops.library import native_library_path

from .support.command_line import environment, fails

# the package has the command of the same name
MODULE = sys.modules["fxrewrite.cli.doctor"]
needs_native = pytest.mark.skipif(ops.native_missing is not None, reason="no native library")


def doctor() -> Result:
    return CliRunner().invoke(main, ["doctor"], env={"COLUMNS": "200"})


def line(result: Result, name: str) -> str:
    return next(row for row in result.stdout.splitlines() if name in row)


@needs_native
def test_a_sound_installation(monkeypatch):
    monkeypatch.setattr(MODULE, "_newer_source", lambda library: "")
    result = doctor()
    assert result.exit_code == 0, result.output
    assert line(result, "torch  ").startswith("ok ")
    assert torch.__version__ in line(result, "torch  ")
    assert line(result, "torch.compile").startswith("ok ")
    assert line(result, "native library").split()[-1] == str(native_library_path())
    assert f"{active_isa()} in use" in line(result, "instruction set")
    for op in ("linear (", "fp8_linear (", "sdpa (", "relu_linear_attention ("):
        assert op in result.stdout


@needs_native
def test_paths_stay_whole_on_a_narrow_terminal():
    lines = CliRunner().invoke(main, ["doctor"], env={"COLUMNS": "60"}).stdout.splitlines()
    assert any(row.endswith(str(native_library_path())) for row in lines)
    assert all(len(row) <= 60 for row in lines if "/" not in row)


@needs_native
def test_a_kernel_that_is_not_chosen_is_listed_with_its_reason():
    lines = doctor().stdout.splitlines()
    start = next(i for i, row in enumerate(lines) if row.startswith("sdpa (") and "1024 queries" in row)
    assert lines[start + 1].split()[0] == "refused"
    assert "query rows" in lines[start + 1]


@needs_native
def test_what_the_level_high_lowers_is_said():
    lines = doctor().stdout.splitlines()
    start = next(i for i, row in enumerate(lines) if row.startswith("linear (fp32, 1024"))
    chosen = next(row for row in lines[start:] if row.startswith(("chosen", "none")))
    lowers = active_isa() in BF16_LEVELS
    assert ("at quality 'high': x and weight are rounded to bfloat16" in chosen) == lowers


def test_a_missing_library_is_a_fault(monkeypatch):
    monkeypatch.setattr(ops, "native_missing", "the native library is not built")
    result = doctor()
    assert result.exit_code == 1
    assert line(result, "native library").startswith("fault")
    assert "not built; every operator runs its reference" in line(result, "native library")


@needs_native
def test_sources_that_are_newer_are_a_fault(monkeypatch):
    monkeypatch.setattr(MODULE, "_newer_source", lambda library: "native/cpu/isa.cpp")
    result = doctor()
    assert result.exit_code == 1
    assert "is older than native/cpu/isa.cpp: make native" in line(result, "native library")


def test_what_is_newer(tmp_path):
    library = tmp_path / "library.so"
    library.write_bytes(b"")
    os.utime(library, (0, 0))
    newer = MODULE._newer_source
    root = os.path.dirname(os.path.dirname(MODULE.__file__))
    if os.path.isdir(os.path.join(os.path.dirname(root), "native")):
        assert newer(str(library)).startswith("native")
    os.utime(library, (time.time() + 3600,) * 2)
    assert newer(str(library)) == ""


def test_a_backend_that_is_not_registered_is_a_fault(monkeypatch):
    monkeypatch.setattr(torch.compiler, "list_backends", lambda: ["inductor"])
    result = doctor()
    assert result.exit_code == 1
    assert line(result, "torch.compile").startswith("fault")


@pytest.mark.parametrize(
    ("flags", "said"),
    [("flags : fpu avx512f amx_bf16 amx_tile\n", "the system"), ("flags : fpu avx2\n", "this CPU has none")],
)
def test_amx(monkeypatch, flags, said):
    monkeypatch.setattr(MODULE, "_cpuinfo", lambda: ["model name : Some CPU\n", flags])
    result = doctor()
    assert said in line(result, "AMX")
    assert line(result, "CPU  ").endswith("Some CPU")


def test_an_unsupported_torch(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.10.1")
    fails(doctor(), "torch 2.10.1 is too old")


@needs_native
def test_the_cap_of_the_environment_is_told():
    done = subprocess.run(
        [sys.executable, "-m", "fxrewrite", "doctor"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**environment(), "FXREWRITE_ISA": "portable", "COLUMNS": "200"},
    )
    assert "portable in use" in done.stdout
    assert "capped by FXREWRITE_ISA=portable" in done.stdout


def test_a_system_that_tells_nothing_of_its_cpu(monkeypatch):
    def absent(*_, **__):
        raise FileNotFoundError("/proc/cpuinfo")

    monkeypatch.setattr(MODULE, "open", absent, raising=False)
    result = doctor()
    assert line(result, "CPU  ").endswith("unknown")
    assert "this CPU has none" in line(result, "AMX")
