"""``fxrewrite::fp8_linear``: the native kernels against float64, at this process's instruction set."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import fxrewrite.ops
from fxrewrite.ops import fp8_linear as definition
from fxrewrite.ops.counters import counters, reset_counters
from tests.ops.layouts import column_counts, depths, lay_out, layouts, row_counts
from tests.support.contract import check

pytestmark = pytest.mark.skipif(fxrewrite.ops.native_missing is not None, reason="no native library")
BF16 = torch.bfloat16
FORMATS = (torch.float8_e4m3fn, torch.float8_e5m2)
INF, NAN = float("inf"), float("nan")
fp8_linear = torch.ops.fxrewrite.fp8_linear


def exact(x, weight, scale=None, bias=None):
    decoded = weight.double() if scale is None else weight.double() * scale.double()
    return F.linear(x.double(), decoded, None if bias is None else bias.double())


def hold(x, weight, scale=None, bias=None):
    check(
        fp8_linear(x, weight, scale, bias),
        definition.reference(x, weight, scale, bias),
        exact(x, weight, scale, bias),
    )


def example(m: int, k: int, n: int, format=FORMATS[0], seed=0):
    generator = torch.Generator().manual_seed(seed)
    x, bias = torch.randn(m, k, generator=generator).to(BF16), torch.randn(n, generator=generator).to(BF16)
    return x, torch.randn(n, k, generator=generator).to(format), bias


def scale_of(kind: str, n: int) -> torch.Tensor | None:
    if kind == "none":
        return None
    if kind == "channel":
        return torch.linspace(0.01, 2.0, n)[:, None]
    shape = {"0-d": (), "1": (1,), "1x1": (1, 1)}[kind]
    return torch.full(shape, 0.37)


@settings(max_examples=80, deadline=None)
@given(
    row_counts, column_counts, depths, layouts, layouts, st.sampled_from(FORMATS),
    st.sampled_from(["none", "0-d", "1", "1x1", "channel"]), st.booleans(), st.integers(0, 9),
)  # fmt: skip
def test_any_shape_layout_and_scale(m, n, k, x_layout, weight_layout, format, scale, biased, seed):
    x, weight, bias = example(m, k, n, format, seed)
    hold(lay_out(x, x_layout), lay_out(weight, weight_layout), scale_of(scale, n), bias if biased else None)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("m", [1, 40])
@pytest.mark.parametrize("transposed", [False, True])
def test_every_code(format, m, transposed):
    """One code a column: each decodes exactly, NaN and infinities included."""
    codes = torch.arange(256, dtype=torch.uint8)
    weight = codes[:, None].expand(256, 3).contiguous().view(format)
    if transposed:
        weight = weight.t().contiguous().t()
    x = torch.zeros(m, 3, dtype=BF16)
    x[:, 1] = 1.0
    ours, wanted = fp8_linear(x, weight)[-1], codes.view(format).to(BF16)
    # zeros times NaN or inf are NaN in the other two places of each row, as in eager
    special = ~wanted.isfinite()
    assert torch.equal(ours[~special], wanted[~special])
    assert ours[special].isnan().all()
    one = fp8_linear(torch.ones(m, 1, dtype=BF16), codes.view(format)[:, None])[-1]
    assert torch.equal(one.nan_to_num(1.5, 2.5, 3.5), wanted.nan_to_num(1.5, 2.5, 3.5))


@pytest.mark.parametrize("m", [1, 5, 16, 33, 80])
@pytest.mark.parametrize("format", FORMATS)
def test_forms(m, format):
    x, weight, bias = example(m, 321, 200, format)
    hold(x, weight, torch.tensor(0.02), bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, BF16])
def test_scale_dtypes(dtype):
    x, weight, bias = example(3, 64, 32)
    hold(x, weight, torch.tensor(0.3, dtype=dtype), bias)
    hold(x, weight, torch.linspace(0.1, 0.9, 64, dtype=dtype)[::2, None], bias)


@pytest.mark.parametrize(
    "scale",
    [
        torch.rand(1, 64) + 0.5, torch.rand(32, 64) + 0.5, torch.tensor(INF), torch.tensor(NAN),
        torch.tensor(3e37), torch.full((32, 1), -INF), torch.tensor(3),
    ],
    ids=["per k", "full", "inf", "nan", "overflows", "inf per channel", "integer"],
)  # fmt: skip
def test_other_scales_go_to_the_reference(scale):
    x, weight, bias = example(3, 64, 32)
    reset_counters()
    ours = fp8_linear(x, weight, scale, bias)
    assert counters()["fp8_linear"] == {"reference": 1}
    assert torch.equal(ours.nan_to_num(7), definition.reference(x, weight, scale, bias).nan_to_num(7))


@pytest.mark.parametrize("scale", [0.0, -0.5])
def test_zero_and_negative_scale(scale):
    x, weight, bias = example(4, 64, 32)
    hold(x, weight, torch.tensor(scale), bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_input_dtypes_go_to_the_reference(dtype):
    x, weight, bias = (t.to(dtype) if t.dtype == BF16 else t for t in example(3, 64, 32))
    assert torch.equal(fp8_linear(x, weight, None, bias), definition.reference(x, weight, None, bias))


@pytest.mark.parametrize("m", [3, 40])
def test_specials_stay_in_their_rows(m):
    x, weight, bias = example(m, 65, 40)
    x[2, 64] = INF
    x[1, 0] = NAN
    hold(x, weight, torch.tensor(0.5), bias)


def test_bias_is_not_scaled():
    x, weight, bias = example(2, 8, 4)
    assert torch.equal(fp8_linear(x, weight, torch.tensor(0.0), bias), bias.expand(2, 4))


def test_errors_are_those_of_the_reference():
    x, weight, bias = example(2, 8, 4)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        fp8_linear(x[:, :7], weight)
    with pytest.raises(RuntimeError, match="must match the size"):
        fp8_linear(x, weight, torch.ones(3, 1), bias)


@pytest.mark.parametrize("m", [4, 40])
def test_opcheck(m):
    x, weight, bias = example(m, 24, 40)
    before = weight.view(torch.uint8).clone()
    # Without test_schema: it compares inputs with allclose, which float8 does not have.
    tests = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(fp8_linear.default, (x, weight, torch.tensor(0.5), bias), test_utils=tests)
    assert torch.equal(weight.view(torch.uint8), before)
