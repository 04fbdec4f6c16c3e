"""Sizes and strides past 2^31 elements, which an index of 32 bits does not reach.

The memory is mapped and hardly touched: what is never written reads as zeros that take none. Only a large
result must be there, and its test asks for the memory first.
"""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import fxrewrite.ops
from fxrewrite.ops.counters import counters, reset_counters
from tests.support.contract import check

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(fxrewrite.ops.native_missing is not None, reason="no native library"),
    pytest.mark.skipif(sys.platform != "linux", reason="memory is mapped as Linux does"),
]
BF16, F32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
MAP_NORESERVE = 0x4000  # mmap has the name from Python 3.13 on
FAR = (1 << 31) + 64
ops = torch.ops.fxrewrite


def zeros(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Zeros in memory that is mapped when it is first written to."""
    size = dtype.itemsize * torch.Size(shape).numel()
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    return torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=torch.uint8).view(dtype).view(shape)


def far_apart(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """The same values, neighbours in ``dim`` more than 2^31 elements apart."""
    strides, step = [FAR] * tensor.dim(), 1
    for d in reversed(range(tensor.dim())):
        if d != dim:
            strides[d], step = step, step * tensor.shape[d]
    memory = zeros((tensor.shape[dim] - 1) * FAR + step, dtype=tensor.dtype)
    return torch.as_strided(memory, tensor.shape, strides).copy_(tensor)


def randn(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def available() -> int:
    """Bytes of memory that processes may still take."""
    told = Path("/proc/meminfo")
    lines = told.read_text().splitlines() if told.exists() else []
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")), 0)


@pytest.fixture(autouse=True)
def _by_a_kernel():
    reset_counters()
    yield
    assert [list(calls) for calls in counters().values() if "reference" not in calls], counters()


# -------------------------------------------------------------------------------------------- strides


@pytest.mark.parametrize("rows", [3, 40])
@pytest.mark.parametrize("dtype", [BF16, F32])
def test_linear_of_far_rows(rows, dtype):
    x, w = randn(rows, 64, dtype=dtype), randn(48, 64, dtype=dtype, seed=1)
    out = ops.linear(far_apart(x, 0), far_apart(w, 0), None)
    check(out, F.linear(x, w), F.linear(x.double(), w.double()))


@pytest.mark.parametrize("rows", [3, 40])
def test_fp8_linear_of_far_rows(rows):
    x, w = randn(rows, 64, dtype=BF16), randn(48, 64, dtype=F32, seed=1).to(FP8)
    out = ops.fp8_linear(far_apart(x, 0), far_apart(w, 0))
    check(out, F.linear(x, w.to(BF16)), F.linear(x.double(), w.double()))


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("queries", [1, 40])
def test_sdpa_of_far_operands(queries, dim, dtype):
    lengths = (queries, 70, 70)
    inputs = [randn(2, 2, length, 32, dtype=dtype, seed=i) for i, length in enumerate(lengths)]
    mask = randn(2, 1, queries, 70, dtype=dtype, seed=3)
    out = ops.sdpa(*(far_apart(t, dim) for t in inputs), far_apart(mask, 2 if dim == 1 else dim))
    exact = F.scaled_dot_product_attention(*(t.double() for t in inputs), mask.double())
    check(out, F.scaled_dot_product_attention(*inputs, mask), exact)


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_linear_attention_of_far_operands(dim, dtype):
    inputs = [randn(2, 2, 70, 32, dtype=dtype, seed=i) for i in range(3)]
    out = ops.relu_linear_attention(*(far_apart(t, dim) for t in inputs), eps=1e-6)
    usual, exact = (
        ops.relu_linear_attention_reference(*(t.to(d) for t in inputs), eps=1e-6)
        for d in (dtype, torch.float64)
    )
    check(out, usual, exact)


# ---------------------------------------------------------------------------------------------- counts


@pytest.mark.parametrize("name", ["linear", "fp8_linear"])
@pytest.mark.parametrize("rows", [1, 9])
def test_a_weight_of_many_elements(name, rows):
    """Its last rows are the only ones that are not 0."""
    columns, depth = (1 << 20) + 8, 2056
    weight = zeros(columns, depth, dtype=BF16 if name == "linear" else FP8)
    assert weight.numel() > FAR
    x, last = randn(rows, depth, dtype=BF16), randn(3, depth, dtype=F32, seed=1).to(FP8)
    weight[-3:] = last.to(weight.dtype)
    out = getattr(ops, name)(x, weight, None)
    assert not out[:, :-3].any()
    check(out[:, -3:], F.linear(x, last.to(BF16)), F.linear(x.double(), last.double()))


def test_many_keys():
    """The last few are those that the query is drawn to."""
    length, dim = (1 << 26) + 8, 32
    k, v = zeros(1, 1, length, dim, dtype=BF16), zeros(1, 1, length, dim, dtype=BF16)
    assert k.numel() > FAR
    q = torch.full((1, 1, 1, dim), 8.0, dtype=BF16)
    k[:, :, -3:] = 8.0
    v[:, :, -3:] = randn(3, dim, dtype=BF16)
    out = ops.sdpa(q, k, v)
    last = [q, k[:, :, -3:], v[:, :, -3:]]  # the others have the weight exp(-362)
    eager = F.scaled_dot_product_attention(*last)
    check(out, eager, F.scaled_dot_product_attention(*(t.double() for t in last)))


def test_a_mask_of_many_elements():
    """Of one row of memory; a window leaves few scores to be computed."""
    length = 50_000
    q, k, v = (randn(1, 1, length, 8, dtype=BF16, seed=i) for i in range(3))
    row = torch.arange(length) % 3 != 0
    mask = row.expand(length, length)
    assert mask.numel() > FAR
    out = ops.sdpa(q, k, v, mask, window=16, safe_softmax=False)
    for first in (0, 25_000, length - 100):
        near = slice(max(0, first - 16), first + 116)
        part = [t[:, :, near] for t in (q, k, v)]
        seen = torch.arange(part[0].shape[2])
        seen = ((seen[:, None] - seen).abs() < 16) & row[near]
        eager = F.scaled_dot_product_attention(*part, seen)
        exact = F.scaled_dot_product_attention(*(t.double() for t in part), seen)
        whole = slice(first - near.start, first - near.start + 100)
        check(out[:, :, first : first + 100], eager[:, :, whole], exact[:, :, whole])


@pytest.mark.skipif(available() < 12 << 30, reason="too little memory for a result of 4 GiB")
def test_a_result_of_many_elements():
    rows, columns = (1 << 16) + 1, (1 << 15) + 8
    x, w = randn(rows, 8, dtype=BF16), randn(columns, 8, dtype=BF16, seed=1)
    out = ops.linear(x, w, None)
    assert out.numel() > FAR
    for near in (slice(0, 50), slice(rows - 50, rows)):
        check(out[near], F.linear(x[near], w), F.linear(x[near].double(), w.double()))
