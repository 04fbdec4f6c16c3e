"""Fixtures of the CUDA tests that need no GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import fxrewrite.ops  # noqa: F401  # the references, to which the shim's ops go for what no kernel takes

from .building import build


@pytest.fixture(scope="session")
def _loaded() -> None:
    torch.ops.load_library(str(build("fxrewrite_cuda_shim")))


@pytest.fixture
def shim(_loaded: None) -> Iterator[torch._ops._OpNamespace]:
    """The CUDA ops, on CPU tensors, by the CUDA-on-CPU shim. At the end of the test the fences of all that was
    allocated must stand."""
    torch.ops.fxrewrite_shim._reset_cuda_counters()
    torch.ops.fxrewrite_shim._check_fences()
    yield torch.ops.fxrewrite_shim
    assert torch.ops.fxrewrite_shim._check_fences(), "a kernel wrote beyond its result or its workspace"


@pytest.fixture
def counted(shim):
    """Calls since the test began, as ``{"op": {"implementation": calls}}``."""

    def counts() -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for line in shim._cuda_counters().splitlines():
            op, implementation, calls = line.split("\t")
            found.setdefault(op, {})[implementation] = int(calls)
        return found

    return counts


@pytest.fixture(scope="session")
def fake_cuda() -> None:
    """Fake CUDA tensors can be used: in a torch without CUDA that takes a device guard which does nothing."""
    if torch.version.cuda is None:
        torch.ops.load_library(str(build("fxrewrite_absent_device")))
