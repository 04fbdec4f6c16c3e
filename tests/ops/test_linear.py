"""``fxrewrite::linear``: the native kernels against float64, at the instruction set of this process."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import fxrewrite.ops
from fxrewrite.guards import Verdict
from fxrewrite.ops import implementations
from fxrewrite.ops.counters import counters, reset_counters
from fxrewrite.ops.isa import active_isa
from fxrewrite.ops.linear import ACTIVATIONS, reference
from tests.ops.layouts import LAYOUTS, column_counts, depths, lay_out, layouts, row_counts
from tests.support.contract import check

pytestmark = pytest.mark.skipif(fxrewrite.ops.native_missing is not None, reason="no native library")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
INF, NAN = float("inf"), float("nan")
linear = torch.ops.fxrewrite.linear


def hold(x, weight, bias=None, **epilogue):
    """The contract against float64, and the layout of eager's result."""
    ours, eager = linear(x, weight, bias, **epilogue), reference(x, weight, bias, **epilogue)
    x, weight, bias = (None if operand is None else operand.double() for operand in (x, weight, bias))
    wide = {n: v.double() if isinstance(v, torch.Tensor) else v for n, v in epilogue.items()}
    check(ours, eager, reference(x, weight, bias, **wide))
    assert ours.stride() == eager.contiguous().stride() or not ours.numel()


def example(*x_shape: int, n: int, dtype=BF16, bias=True, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(x_shape, generator=generator).to(dtype)
    weight = torch.randn(n, x_shape[-1], generator=generator).to(dtype)
    return x, weight, torch.randn(n, generator=generator).to(dtype) if bias else None


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    row_counts, column_counts, depths, layouts, layouts, st.booleans(), st.integers(0, 9)
)  # fmt: skip
def test_any_shape_and_layout(m, n, k, x_layout, weight_layout, bias, seed):
    x, weight, b = example(m, k, n=n, bias=bias, seed=seed)
    hold(lay_out(x, x_layout), lay_out(weight, weight_layout), b)


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("m", [1, 2, 3, 5, 8, 11, 16, 31, 32, 33, 70, 77, 200])
@pytest.mark.parametrize(("n", "k"), [(64, 64), (200, 257), (199, 1030), (96, 768)])
def test_forms(m, n, k, dtype):
    hold(*example(m, k, n=n, dtype=dtype))


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("m", [4, 16, 40, 200])
def test_long_k_is_summed_in_float32(m, dtype):
    x, weight, bias = example(m, 9001, n=40, dtype=dtype)
    hold(x, weight, bias)
    assert linear(torch.full((m, 9001), 1.0), torch.ones(3, 9001)).eq(9001).all()


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("whole", [0, 32, 64, 80])
@pytest.mark.parametrize("left", range(16))
@pytest.mark.parametrize(("n", "k"), [(112, 1500), (53, 94)])
def test_rows_beyond_whole_vectors(left, whole, n, k, dtype):
    hold(*example(whole + left, k, n=n, dtype=dtype))


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("left", [0, 1, 6, 8, 13])
def test_rows_beyond_whole_vectors_of_long_k(left, dtype):
    hold(*example(64 + left, 9001, n=53, dtype=dtype))


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("left", [3, 13])
def test_rows_beyond_whole_vectors_with_an_epilogue(left, dtype):
    x, weight, bias = example(64 + left, 96, n=53, dtype=dtype)
    factor, residual = (example(64 + left, 53, n=1, dtype=dtype, seed=seed)[0] for seed in (1, 2))
    hold(x, weight, bias, activation="gelu", multiply=factor, residual=residual)


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("left", [0, 4, 9])
def test_rows_beyond_the_most_at_once(left, dtype):
    hold(*example(512 + left, 512, n=4100, dtype=dtype))


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("m", [150, 530])
def test_many_rows_and_columns(m, dtype):
    hold(*example(m, 2051, n=301, dtype=dtype))


@pytest.mark.skipif(
    active_isa() != "avx512_bf16", reason="where products by rows of the weight are listed first"
)
@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize(("m", "form"), [(1, "dot"), (6, "dot"), (7, "panel"), (16, "panel"), (17, "panel")])
def test_the_form_is_the_first_that_is_listed(m, form, dtype):
    x, weight, bias = example(m, 640, n=16, dtype=dtype)
    reset_counters()
    linear(x, weight, bias)
    (counted,) = counters()["linear"]
    assert counted == f"avx512_bf16:{form}"
    nothing = {"activation": "", "multiply": None, "residual": None}
    arguments = {"x": x, "weight": weight, "bias": bias, **nothing}
    dot = implementations.IMPLEMENTATIONS["linear"][0]
    judged = [guard.judge().verdict for guard in dot.requires(arguments, "avx512_bf16")]
    assert all(verdict is Verdict.PROVED for verdict in judged) == (form == "dot")


@pytest.mark.skipif(active_isa() != "avx512_bf16", reason="how many rows depends on the instruction set")
@pytest.mark.parametrize(("m", "form"), [(1, "dot"), (12, "dot"), (13, "panel")])
def test_the_form_in_float16(m, form):
    x, weight, bias = example(m, 640, n=16, dtype=F16)
    reset_counters()
    linear(x, weight, bias)
    assert list(counters()["linear"]) == [f"avx512_bf16:{form}"]
    few = implementations._row_by_row({"x": x, "weight": weight}, "avx512_bf16")
    assert all(guard.judge().verdict is Verdict.PROVED for guard in few) == (form == "dot")


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


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("m", [3, 13, 40])
@pytest.mark.parametrize("special", [INF, -INF, NAN])
@pytest.mark.parametrize("k", [1, 33, 100])
def test_specials_stay_in_their_rows_and_columns(m, special, k, dtype):
    x, weight, bias = example(m, k, n=70, dtype=dtype)
    x[2, k - 1] = special
    weight[69, 0] = special
    bias[1] = special
    hold(x, weight, bias)


def test_no_rounding_before_the_bias():
    # The product rounds to 256 in bfloat16, and would lose the bias's half.
    x, weight = torch.tensor([[256.0, 1.0]], dtype=BF16), torch.tensor([[1.0, 1.0]], dtype=BF16)
    assert linear(x, weight, torch.tensor([-255.0], dtype=BF16)).item() == 2.0


@pytest.mark.parametrize("m", [1, 16, 64, 77])
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
    linear(x.double(), weight.double(), bias.double())
    counted = counters()["linear"]
    assert counted.pop("reference") == 1
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


# ----------------------------------------------------------------------------------------- epilogue


def operand(*shape: int, dtype=BF16, seed=0):
    generator = torch.Generator().manual_seed(1000 + seed)
    return torch.randn(shape, generator=generator).to(dtype)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    st.integers(0, 3),
    st.integers(0, 40),
    column_counts,
    depths,
    st.sampled_from(sorted(ACTIVATIONS)),
    st.sampled_from([None, "every element", "each batch", "each column"]),
    st.sampled_from([None, *LAYOUTS]),
    st.integers(0, 9),
)
def test_any_epilogue(batch, rows, n, k, activation, factor, residual_layout, seed):
    x, weight, bias = example(batch, rows, k, n=n, seed=seed)
    epilogue = {"activation": activation}
    shapes = {"every element": (batch, rows, n), "each batch": (batch, 1, n), "each column": (n,)}
    if factor is not None:
        epilogue["multiply"] = operand(*shapes[factor], seed=seed)
    if residual_layout is not None:
        epilogue["residual"] = lay_out(operand(batch, rows, n, seed=seed + 1), residual_layout)
    hold(x, weight, bias, **epilogue)


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
@pytest.mark.parametrize("m", [3, 200])
def test_epilogue_in_float32(activation, m):
    x, weight, bias = example(2, m, 500, n=130, dtype=F32)
    hold(x, weight, bias, activation=activation)
    factor, residual = operand(2, 1, 130, dtype=F32), operand(2, m, 130, dtype=F32)
    hold(x, weight, bias, activation=activation, multiply=factor, residual=residual)


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_activations_over_their_range(activation, dtype):
    """One product gives each value: what is wrong is the activation's."""
    x = torch.cat([torch.linspace(-40, 40, 4001), torch.tensor([0.0, -0.0, 1e-30, -1e-30, 1e30, -1e30])])
    x = x.to(dtype)[:, None]
    hold(x, torch.ones(1, 1, dtype=dtype), activation=activation)
    hold(torch.ones(3, 1, dtype=dtype), x, activation=activation)  # the dot form


@pytest.mark.parametrize("m", [3, 40])
@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_specials_of_activations(activation, dtype, m):
    """As eager has them, but for gelu(inf), which is NaN there for the way that it computes erf."""
    ours = linear(
        torch.ones(m, 1, dtype=dtype),
        torch.tensor([[INF], [-INF], [NAN]], dtype=dtype),
        activation=activation,
    )
    relus = {"": [INF, -INF, NAN], "relu": [INF, 0.0, NAN]}
    expected = torch.tensor(relus.get(activation, [INF, NAN, NAN]), dtype=dtype).expand(m, 3)
    assert torch.equal(ours.nan_to_num(7.0), expected.nan_to_num(7.0))


@pytest.mark.parametrize("m", [2, 40])
def test_specials_of_operands(m):
    x, weight, bias = example(2, m, 8, n=20)
    factor, residual = operand(2, 1, 20), operand(2, m, 20)
    factor[1, 0, 3], residual[0, 1, 5] = INF, NAN
    weight[3] = 0
    bias[3] = 0
    hold(x, weight, bias, multiply=factor, residual=residual)


def test_gates_in_place():
    """A gate as a modulation's chunk has it, and other rows that need no copy."""
    x, weight, bias = example(3, 10, 16, n=24)
    modulation = operand(3, 6, 24)
    reset_counters()
    for gate in (
        modulation[:, 2:3],
        operand(3, 6 * 24)[:, 24:48].unsqueeze(1),
        operand(10, 24),
        operand(1, 10, 24),
        operand(1, 1, 24),
        operand(24).expand(3, 10, 24),
        operand(3, 20, 24)[:, ::2],
        operand(3, 10, 30)[..., 3:27],
    ):
        hold(x, weight, bias, multiply=gate, residual=gate.expand(3, 10, 24))
    x4 = x.view(3, 5, 2, 16)
    hold(x4, weight, bias, multiply=operand(3, 1, 1, 24))
    hold(x4, weight, bias, multiply=operand(3, 5, 1, 24), residual=operand(3, 2, 5, 24).transpose(1, 2))
    assert "reference" not in counters()["linear"]


@pytest.mark.parametrize(
    "epilogue",
    [
        {"multiply": operand(2, 10, 1)},
        {"multiply": operand(5, 1, 2, 24).transpose(0, 2)},
        {"multiply": operand(2, 10, 24).double()},
        {"residual": operand(2, 10, 24).float()},
        {"residual": operand(1, 10, 1)},
    ],
)
def test_other_operands_go_to_the_reference(epilogue):
    x, weight, bias = example(2, 10, 16, n=24)
    if next(iter(epilogue.values())).dim() == 4:
        x = x.view(2, 1, 10, 16).expand(2, 5, 10, 16)[:, :, :5].contiguous()
    reset_counters()
    got = linear(x, weight, bias, **epilogue)
    assert torch.equal(got, reference(x, weight, bias, **epilogue))
    assert counters()["linear"] == {"reference": 1}


def test_an_unknown_activation_is_named():
    with pytest.raises(RuntimeError, match="activation 'elu' is not one of"):
        linear(*example(2, 3, n=4), activation="elu")


@pytest.mark.parametrize("m", [4, 40])
def test_epilogue_over_threads(m):
    x, weight, bias = example(3, m, 300, n=500)
    epilogue = {"activation": "silu", "multiply": operand(3, 1, 500), "residual": operand(3, m, 500)}
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = linear(x, weight, bias, **epilogue)
        torch.set_num_threads(3)
        assert torch.equal(linear(x, weight, bias, **epilogue), one)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("m", [4, 40])
def test_opcheck(m):
    x, weight, bias = example(2, m, 24, n=40)
    torch.library.opcheck(linear.default, (x, weight, bias))
    torch.library.opcheck(linear.default, (x.transpose(0, 1), weight))
    epilogue = {"activation": "gelu", "multiply": operand(2, 1, 40), "residual": operand(2, m, 40)}
    torch.library.opcheck(linear.default, (x, weight, bias), epilogue)
