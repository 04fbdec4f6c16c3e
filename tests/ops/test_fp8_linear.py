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
from fxrewrite.ops.isa import active_isa
from fxrewrite.rewriting.choice import arguments_of, choose
from tests.ops.layouts import column_counts, depths, lay_out, layouts, row_counts
from tests.support.contract import check

pytestmark = pytest.mark.skipif(fxrewrite.ops.native_missing is not None, reason="no native library")
BF16 = torch.bfloat16
FORMATS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
DTYPES = (BF16, torch.float16, torch.float32)
INF, NAN = float("inf"), float("nan")
fp8_linear = torch.ops.fxrewrite.fp8_linear


def exact(x, weight, scale=None, bias=None, block=None):
    decoded = weight.double()
    if scale is not None:
        decoded = decoded * spread(scale.double(), weight, block)
    return F.linear(x.double(), decoded, None if bias is None else bias.double())


def spread(scale, weight, block):
    """The scale of each element of the weight, by its indices."""
    if block is None:
        return scale.expand(weight.shape)
    rows, columns = (torch.arange(size) // b for size, b in zip(weight.shape, block, strict=True))
    return scale[rows][:, columns]


def eager(x, weight, scale=None, bias=None, block=None):
    """What a model runs: the weight decoded and scaled, in the dtype of x."""
    decoded = weight.to(x.dtype)
    if scale is not None:
        decoded = (weight.float() * spread(scale.float(), weight, block)).to(x.dtype)
    return F.linear(x, decoded, bias)


def hold(x, weight, scale=None, bias=None, block=None):
    check(
        fp8_linear(x, weight, scale, bias, block),
        eager(x, weight, scale, bias, block),
        exact(x, weight, scale, bias, block),
    )


def example(m: int, k: int, n: int, format=FORMATS[0], seed=0, dtype=BF16):
    generator = torch.Generator().manual_seed(seed)
    x, bias = torch.randn(m, k, generator=generator).to(dtype), torch.randn(n, generator=generator).to(dtype)
    return x, torch.randn(n, k, generator=generator).to(format), bias


SCALES = ("none", "0-d", "1", "1x1", "channel", "columns", "column vector")
GRIDS = ((16, 64), (128, 128), (1, 32), (32, 1), (5, 7), (3, 500))


def scale_of(kind: str, n: int, k: int) -> torch.Tensor | None:
    if kind == "none":
        return None
    if kind == "channel":
        return torch.linspace(0.01, 2.0, n)[:, None]
    if kind.startswith("column"):
        columns = torch.linspace(0.01, 2.0, k)
        return columns if kind == "column vector" else columns[None]
    shape = {"0-d": (), "1": (1,), "1x1": (1, 1)}[kind]
    return torch.full(shape, 0.37)


def grid_of(block: tuple[int, int], n: int, k: int) -> torch.Tensor:
    rows, columns = -(-n // block[0]), -(-k // block[1])
    return torch.rand(rows, columns, generator=torch.Generator().manual_seed(n + k)) * 2 + 0.01


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    row_counts, column_counts, depths, layouts, layouts, st.sampled_from(FORMATS),
    st.sampled_from(SCALES), st.booleans(), st.integers(0, 9),
)  # fmt: skip
def test_any_shape_layout_and_scale(m, n, k, x_layout, weight_layout, format, scale, biased, seed):
    x, weight, bias = example(m, k, n, format, seed)
    hold(
        lay_out(x, x_layout), lay_out(weight, weight_layout), scale_of(scale, n, k), bias if biased else None
    )


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    row_counts, column_counts, depths, layouts, st.sampled_from(FORMATS), st.sampled_from(GRIDS),
    st.sampled_from((BF16, torch.float16)), st.booleans(), st.integers(0, 9),
)  # fmt: skip
def test_any_blocks(m, n, k, weight_layout, format, block, dtype, biased, seed):
    if 0 in (n, k):
        return
    x, weight, bias = example(m, k, n, format, seed, dtype)
    hold(x, lay_out(weight, weight_layout), grid_of(block, n, k), bias if biased else None, block)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", [1, 7, 80])
@pytest.mark.parametrize("scale", ["none", "0-d", "channel", "columns"])
def test_dtypes_of_x(dtype, m, scale):
    x, weight, bias = example(m, 321, 200, dtype=dtype)
    reset_counters()
    hold(x, weight, scale_of(scale, 200, 321), bias)
    assert "reference" not in counters()["fp8_linear"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", [1, 7, 80])
@pytest.mark.parametrize("block", GRIDS)
def test_blocks(dtype, m, block):
    x, weight, bias = example(m, 321, 200, dtype=dtype)
    reset_counters()
    hold(x, weight, grid_of(block, 200, 321), bias, block)
    assert "reference" not in counters()["fp8_linear"]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", [1, 16, 40, 80])
def test_every_code(format, dtype, m):
    """All 256 codes decode exactly, NaN and infinities included, whatever the way that the weight takes."""
    codes = torch.arange(256, dtype=torch.uint8).view(format)
    wanted = codes.to(dtype)
    single = codes[:, None]
    double = codes[:, None].view(torch.uint8).expand(256, 2).contiguous().view(format)
    gapped, transposed = double[:, :1], double.t().contiguous().t()[:, :1]
    ones, half = torch.ones(256, 1), torch.full((4, 1), 0.5)
    for weight in (single, gapped, transposed):
        for scale, block, factor in (
            (None, None, 1), (torch.tensor(2.0), None, 2), (ones, None, 1),
            (torch.full((1,), 0.5), None, 0.5), (half, (64, 64), 0.5), (ones, (1, 1), 1),
        ):  # fmt: skip
            ours = fp8_linear(torch.ones(m, 1, dtype=dtype), weight, scale, None, block)[-1]
            assert torch.equal(ours.nan_to_num(1.5, 2.5, 3.5), (wanted * factor).nan_to_num(1.5, 2.5, 3.5))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("m", [1, 40])
@pytest.mark.parametrize("rows", [1, 16, 128])
def test_every_code_in_scaled_blocks(format, m, rows):
    """Factors of both signs, and 0, by which every code's product is exact in bfloat16 too."""
    codes = torch.arange(256, dtype=torch.uint8).view(format)
    factors = torch.tensor([0.5, -2.0, 3.0, 0.0, -0.375]).repeat(103)[: 2 * (256 // rows)].view(-1, 2)
    for k in (0, 63, 64, 100):
        weight = torch.zeros(256, 101).to(format)
        weight[:, k] = codes
        ours = fp8_linear(torch.ones(m, 101, dtype=BF16), weight, factors, None, (rows, 64))[-1]
        wanted = codes.to(BF16) * factors[:, k // 64].repeat_interleave(rows)
        assert torch.equal(ours.float().nan_to_num(1.5, 2.5, 3.5), wanted.nan_to_num(1.5, 2.5, 3.5))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("m", [1, 16, 40, 80])
def test_every_code_at_every_place(format, m):
    """Each code at each k of a vector that is decoded at once, and at each column of a panel."""
    codes = torch.arange(256, dtype=torch.uint8).view(format)
    finite = codes[codes.float().isfinite()]
    shifted = torch.stack([finite.view(torch.uint8).roll(i) for i in range(192)]).view(format)
    x = torch.eye(len(finite), dtype=BF16)[:m]
    ours = fp8_linear(x, shifted)
    assert torch.equal(ours, shifted.to(BF16).t()[:m])


@pytest.mark.parametrize("m", [1, 2, 5, 16, 33, 48, 80])
@pytest.mark.parametrize("n", [1, 129, 200])
@pytest.mark.parametrize("format", FORMATS)
def test_forms(m, n, format):
    x, weight, bias = example(m, 321, n, format)
    hold(x, weight, torch.tensor(0.02), bias)


@pytest.mark.parametrize("m", [2, 16, 144])
@pytest.mark.parametrize("scale", ["none", "channel"])
def test_deep_sums(m, scale):
    """Deeper than what of x is multiplied at once; more columns than a thread takes, of which few are left over."""
    x, weight, bias = example(m, 4131, 259)
    hold(x, weight, scale_of(scale, 259, 4131), bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, BF16])
def test_scale_dtypes(dtype):
    x, weight, bias = example(3, 64, 32)
    hold(x, weight, torch.tensor(0.3, dtype=dtype), bias)
    hold(x, weight, torch.linspace(0.1, 0.9, 64, dtype=dtype)[::2, None], bias)
    hold(x, weight, torch.linspace(0.1, 0.9, 16).view(2, 8).t()[:, :1].to(dtype), bias, (4, 64))
    hold(x, weight, torch.linspace(0.1, 0.9, 64).view(8, 8).t()[:, :4].to(dtype), bias, (4, 16))


@pytest.mark.parametrize(
    "scale",
    [
        torch.tensor(INF), torch.tensor(NAN), torch.tensor(3e37), torch.full((32, 1), -INF), torch.tensor(3),
        torch.full((64,), NAN),
    ],
    ids=["inf", "nan", "overflows", "inf per channel", "integer", "nan per column"],
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


def test_an_element_each_is_a_scale_too():
    x, weight, bias = example(3, 64, 32)
    hold(x, weight, torch.rand(32, 64) + 0.5, bias)
    hold(x, weight, torch.rand(32, 64) + 0.5, bias, (1, 1))


def test_float64_goes_to_the_reference():
    x, weight, bias = (t.double() if t.dtype == BF16 else t for t in example(3, 64, 32))
    assert torch.equal(fp8_linear(x, weight, None, bias), definition.reference(x, weight, None, bias))


def test_scales_of_rows_of_x_do_not_overflow_on_the_way():
    """The dot form scales x where a block spans many columns: x · s may be beyond bfloat16, the sum is not."""
    x, weight = torch.full((1, 64), 1e38, dtype=BF16), torch.full((16, 64), 2.0**-9).to(FORMATS[0])
    scale = torch.tensor([[8.0, 1.0]])
    ours = fp8_linear(x, weight, scale, None, (16, 32))
    assert torch.isinf(ours).sum() == torch.isinf(eager(x, weight, scale, None, (16, 32))).sum() == 0


@pytest.mark.parametrize("m", [3, 32, 40])
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
    with pytest.raises(
        RuntimeError, match=r"scale of shape \[2, 2\] for blocks of 3 x 3 of a weight of shape \[4, 8\]"
    ):
        fp8_linear(x, weight, torch.ones(2, 2), bias, (3, 3))


@pytest.mark.parametrize("m", [4, 40])
def test_opcheck(m):
    x, weight, bias = example(m, 24, 40)
    before = weight.view(torch.uint8).clone()
    # Without test_schema: it compares inputs with allclose, which float8 does not have.
    tests = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(fp8_linear.default, (x, weight, torch.tensor(0.5), bias), test_utils=tests)
    blocks = (x, weight, torch.ones(5, 3), bias, [8, 8])
    torch.library.opcheck(fp8_linear.default, blocks, test_utils=tests)
    assert torch.equal(weight.view(torch.uint8), before)


@pytest.mark.skipif(active_isa() != "avx512_bf16", reason="how many rows depends on the instruction set")
@pytest.mark.parametrize("scale", ["none", "0-d", "channel", "column"])
@pytest.mark.parametrize("m", [1, 2, 14, 15, 16, 17, 28, 29, 32, 33])
def test_the_form_is_the_first_that_is_listed(m, scale):
    x, weight, bias = example(m, 1280, 64)
    factor = scale_of(scale, 64, 1280)
    reset_counters()
    fp8_linear(x, weight, factor, bias)
    chosen = choose("fp8_linear", arguments_of(fp8_linear.default._schema, (x, weight, factor, bias), {}))
    assert list(counters()["fp8_linear"]) == [chosen.implementation]
