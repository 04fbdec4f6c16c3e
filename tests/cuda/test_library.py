"""The CUDA library, as nvcc builds it: it compiles for each architecture without warnings, and it loads."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import fxrewrite.ops  # noqa: F401

from .building import build, nvcc
from .resources import ARCHITECTURES, TABLE, collect, table, version

needs_nvcc = pytest.mark.skipif(nvcc() is None, reason="no nvcc: the CUDA sources are not compiled")


def test_the_shims_schemas_are_those_of_the_ops(shim):
    for op in ("relu_linear_attention", "fp8_linear"):
        ours, real = (
            getattr(getattr(torch.ops, n), op).default._schema for n in ("fxrewrite_shim", "fxrewrite")
        )
        assert str(ours).split("::")[1] == str(real).split("::")[1]


@needs_nvcc
def test_it_loads_without_a_gpu_and_registers_its_kernels():
    program = (
        "import torch, fxrewrite.ops, sys; torch.ops.load_library(sys.argv[1]);"
        "has = lambda op: torch._C._dispatch_has_kernel_for_dispatch_key(f'fxrewrite::{op}', 'CUDA');"
        "print(has('relu_linear_attention'), has('fp8_linear'), repr(torch.ops.fxrewrite._cuda_counters()))"
    )
    library = build("fxrewrite_cuda")
    done = subprocess.run(
        [sys.executable, "-c", program, str(library)], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "True True ''", done.stderr[-2000:]


@needs_nvcc
def test_registers_and_spills_are_those_of_the_table():
    build("fxrewrite_cuda")
    found = collect()
    assert set(found) == set(ARCHITECTURES)
    assert len({frozenset(kernels) for kernels in found.values()}) == 1, "a kernel for one architecture only"
    print(table(found))
    if version() not in TABLE.read_text():
        pytest.skip(f"the table is another nvcc's, this one is {version()}")
    assert table(found) in TABLE.read_text(), "run `python -m tests.cuda.resources` and look at what changed"
