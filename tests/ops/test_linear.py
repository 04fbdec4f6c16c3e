"""``fxrewrite::linear``: the native kernels against float64, at the instruction set of this process."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import fxrewrite.ops
from fxrewrite.ops.counters import counters, reset_counters
from tests.ops.layouts import column_counts, depths, lay_out, layouts, row_counts
from tests.support.contract import check

pytestmark = pytest.mark.skipif(fxrewrite.ops.native_missing is not None, reason="no native library")
BF16, F32 = torch.bfloat16, torch.float32
INF, NAN = float("inf"), float("nan")
linear = torch.ops.fxrewrite.linear


def hold(x, weight, bias=None):
    """The contract against float64, and the layout of eager's result."""
    ours, eager = linear(x, weight, bias), F.linear(x, weight, bias)
    check(ours, eager, F.linear(x.double(), weight.double(), None if bias is None else bias.double()))
    assert ours.stride() == eager.contiguous().stride()


def example(*x_shape: int, n: int, dtype=BF16, bias=True, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(x_shape, generator=generator).to(dtype)
    weight = torch.randn(n, x_shape[-1], generator=generator).to(dtype)
    return x, weight, torch.randn(n, generator=generator).to(dtype) if bias else None


@settings(max_examples=80, deadline=None)
@given(
    row_counts, column_counts, depths, layouts, layouts, st.booleans(), st.integers(0, 9)
)  # fmt: skip
def test_any_shape_and_layout(m, n, k, x_layout, weight_layout, bias, seed):
    x, weight, b = example(m, k, n=n, bias=bias, seed=seed)
    hold(lay_out(x, x_layout), lay_out(weight, weight_layout), b)


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("m", [1, 2, 3, 5, 8, 31, 32, 33, 70, 200])
@pytest.mark.parametrize(("n", "k"), [(64, 64), (200, 257), (96, 768)])
def test_forms(m, n, k, dtype):
    hold(*example(m, k, n=n, dtype=dtype))


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("m", [4, 40])
def test_long_k_is_summed_in_float32(m, dtype):
    x, weight, bias = example(m, 9001, n=40, dtype=dtype)
    hold(x, weight, bias)
    assert linear(torch.full((m, 9001), 1.0), torch.ones(3, 9001)).eq(9001).all()


@pytest.mark.parametrize("shape", [(7,), (2, 3, 7), (2, 1, 5, 7), (0, 7), (3, 0, 7), (1, 1, 7)])
def test_leading_dimensions(shape):
    hold(*example(*shape, n=5))


def test_views_of_larger_inputs():
    x, weight, bias = example(2, 6, 5, 8, n=12)
    hold(x[:, ::2], weight, bias)
    hold(x.transpose(1, 2), weight, bias)
    hold(x[..., 0:1].expand(2, 6, 5, 8), weight, bias)
    hold(x[:1, :1].expand(3, 6, 5, 8), weight, bias)
    hold(x, weight[:1].expand(12, 8), bias)
    hold(x, weight[:, :1].expand(12, 8), bias[:1].expand(12))
    hold(x, torch.cat([weight, weight])[::2], torch.cat([bias, bias])[::2])


@pytest.mark.parametrize("m", [3, 40])
@pytest.mark.parametrize("special", [INF, -INF, NAN])
@pytest.mark.parametrize("k", [1, 33, 100])
def test_specials_stay_in_their_rows_and_columns(m, special, k):
    x, weight, bias = example(m, k, n=70)
    x[2, k - 1] = special
    weight[69, 0] = special
    bias[1] = special
    hold(x, weight, bias)


def test_no_rounding_before_the_bias():
    # The product rounds to 256 in bfloat16, and would lose the bias's half.
    x, weight = torch.tensor([[256.0, 1.0]], dtype=BF16), torch.tensor([[1.0, 1.0]], dtype=BF16)
    assert linear(x, weight, torch.tensor([-255.0], dtype=BF16)).item() == 2.0


@pytest.mark.parametrize("m", [1, 16, 64])
def test_threads_agree(m):
    x, weight, bias = example(m, 300, n=500)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = linear(x, weight, bias)
        torch.set_num_threads(3)
        assert torch.equal(linear(x, weight, bias), one)
        assert torch.equal(linear(x, weight[:20], bias[:20]), one[:, :20])  # fewer panels than threads
    finally:
        torch.set_num_threads(threads)


def test_counts_and_reference():
    x, weight, bias = example(4, 16, n=8)
    reset_counters()
    linear(x, weight, bias)
    linear(x.half(), weight.half(), bias.half())
    linear(x.double(), weight.double(), bias.double())
    counted = counters()["linear"]
    assert counted.pop("reference") == 2
    assert [name.endswith(":dot") for name in counted] == [True]


@pytest.mark.parametrize(
    ("x", "weight", "bias"),
    [
        (torch.ones(2, 3), torch.ones(4, 5), None),
        (torch.ones(2, 3), torch.ones(4, 3), torch.ones(5)),
        (torch.ones(2, 3, dtype=BF16), torch.ones(4, 3), None),
        (torch.tensor(1.0), torch.ones(4, 3), None),
    ],
)
def test_errors_are_those_of_the_reference(x, weight, bias):
    with pytest.raises(RuntimeError) as eager:
        F.linear(x, weight, bias)
    with pytest.raises(RuntimeError) as ours:
        linear(x, weight, bias)
    assert str(eager.value).splitlines()[0] in str(ours.value)


def test_unusual_bias_goes_to_the_reference():
    x, weight, _ = example(2, 3, n=4)
    for bias in (torch.ones(1, dtype=BF16), torch.tensor(2.0, dtype=BF16)):
        assert torch.equal(linear(x, weight, bias), F.linear(x, weight, bias))


def test_weight_is_read_in_place():
    x, weight, bias = example(40, 64, n=64)
    version, before = weight._version, weight.clone()
    linear(x, weight, bias)
    assert weight._version == version
    assert torch.equal(weight, before)
    weight.mul_(2)
    hold(x, weight, bias)


@pytest.mark.parametrize("m", [4, 40])
def test_opcheck(m):
    x, weight, bias = example(2, m, 24, n=40)
    torch.library.opcheck(linear.default, (x, weight, bias))
    torch.library.opcheck(linear.default, (x.transpose(0, 1), weight))
