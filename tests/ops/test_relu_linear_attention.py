"""``fxrewrite::relu_linear_attention`` against float64, and against the errors of the eager chain."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fxrewrite
from fxrewrite.ops import relu_linear_attention as module
from fxrewrite.ops.counters import counters, reset_counters
from fxrewrite.ops.implementations import BF16_LEVELS
from fxrewrite.ops.isa import active_isa

BF16, F32 = torch.bfloat16, torch.float32
op = torch.ops.fxrewrite.relu_linear_attention
reference = torch.ops.fxrewrite.relu_linear_attention_reference


def turned(x, cos, sin):
    """Each pair (2i, 2i + 1) of ``x`` as a complex number, times cos + i·sin."""
    return torch.view_as_real(
        torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        * torch.complex(*torch.broadcast_tensors(cos, sin))
    ).flatten(-2)


def exact(q, k, v, norm_q=None, norm_k=None, cos=None, sin=None, *, eps, floor=None, relu=True, **_):
    """The op's meaning, in float64."""
    q, k, v = q.double(), k.double(), v.double()
    if relu:
        q, k = q.relu(), k.relu()
    norm_q = q if norm_q is None else norm_q.double()
    norm_k = k if norm_k is None else norm_k.double()
    if cos is not None:
        q, k = (turned(x, cos.double(), sin.double()) for x in (q, k))
    norm = norm_q @ norm_k.sum(-2, keepdim=True).mT
    return (q @ (k.mT @ v)) / (norm.clamp_min(-torch.inf if floor is None else floor) + eps)


def rms(x: torch.Tensor) -> float:
    return x.double().square().mean().sqrt().item()


def hold(*inputs, **options):
    """The contract: error at most 1.25 times that of the chain in fp32, memory in the order asked."""
    out = op(*inputs, **options)
    want, usual = exact(*inputs, **options), reference(*inputs, **options)
    assert out.shape == want.shape
    assert out.dtype == usual.dtype
    assert (out.mT if options.get("channel_major") else out).is_contiguous()
    assert rms(out - want) <= 1.25 * rms(usual - want)


def draw(batch, heads, tokens, dim, dtype=BF16, layout="token", seed=0):
    """A [B, H, N, D] tensor in the order of memory that a model has it in."""
    shape, order = {
        "head": ((batch, heads, tokens, dim), (0, 1, 2, 3)),
        "token": ((batch, tokens, heads, dim), (0, 2, 1, 3)),
        "channel": ((batch, heads, dim, tokens), (0, 1, 3, 2)),
    }[layout]
    g = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=g).to(dtype).permute(order)


@pytest.mark.parametrize("layout", ["head", "token", "channel"])
@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize(
    "shape",
    [(2, 3, 700, 32), (1, 2, 1025, 112), (1, 2, 300, 64), (1, 1, 513, 256), (1, 2, 77, 17), (4, 8, 5, 72)],
)
def test_error_is_at_most_that_of_the_chain(shape, dtype, layout):
    q, k, v = (draw(*shape, dtype, layout, seed) for seed in range(3))
    for channel_major in (False, True):
        hold(q, k, v, eps=1e-15, channel_major=channel_major)
        hold(q, k, v, eps=1e-5, channel_major=channel_major, out_dtype=F32)


@pytest.mark.parametrize("layout", ["token", "channel"])
@pytest.mark.parametrize("dtype", [BF16, F32])
def test_features_of_the_normaliser(dtype, layout):
    rotated_q, rotated_k, v, q, k = (draw(1, 3, 600, 112, dtype, layout, seed) for seed in range(5))
    hold(
        rotated_q, rotated_k, v, q.relu(), k.relu(), eps=1e-15, relu=False, channel_major=layout == "channel"
    )


def angles(*shape, dtype=F32, seed=9):
    """cos and sin; with a step of 2 in memory, as slices of a table have."""
    angle = torch.rand(*shape[:-1], 2 * shape[-1], generator=torch.Generator().manual_seed(seed)) * 6.28
    return angle.cos().to(dtype)[..., ::2], angle.sin().to(dtype)[..., 1::2]


@pytest.mark.parametrize("layout", ["head", "token", "channel"])
@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("shape", [(1, 3, 1100, 112), (2, 2, 300, 32), (1, 2, 77, 18), (2, 1, 9, 256)])
def test_rotary_embedding(shape, dtype, layout):
    q, k, v = (draw(*shape, dtype, layout, seed) for seed in range(3))
    turn = angles(1, 1, shape[2], shape[3] // 2)
    for channel_major in (False, True):
        for relu in (True, False):
            a, b = (q, k) if relu else (q.abs(), k.abs())
            hold(a, b, v, None, None, *turn, eps=1e-15, relu=relu, channel_major=channel_major)
        hold(q, k, v, None, None, *turn, eps=1e-5, channel_major=channel_major, out_dtype=F32)


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize(
    "shape", [(2, 3, 70, 10), (1, 3, 70, 10), (2, 1, 70, 10), (1, 1, 1, 10), (70, 10), (10,), (3, 1, 10)]
)
def test_angles_broadcast(shape, dtype):
    q, k, v = (draw(2, 3, 70, 20, seed=seed) for seed in range(3))
    hold(q, k, v, None, None, *angles(*shape, dtype=dtype), eps=1e-6)
    cos, sin = angles(*shape)[0], angles(1, 1, 70, 10)[1]  # each of its own shape
    hold(q, k, v, None, None, cos, sin, eps=1e-6, channel_major=True)


def test_mixed_dtypes_with_a_rotary_embedding():
    turn = angles(1, 1, 300, 24)
    for features, value in ((BF16, F32), (F32, BF16)):
        q, k = draw(1, 2, 300, 48, features), draw(1, 2, 300, 48, features, seed=1)
        for out_dtype in (None, BF16, F32):
            hold(q, k, draw(1, 2, 300, 40, value, seed=2), None, None, *turn, eps=1e-6, out_dtype=out_dtype)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("which", range(5))
def test_non_finite_inputs_turned(value, which):
    inputs = [draw(1, 2, 70, 20, seed=seed) for seed in range(3)] + [t.clone() for t in angles(1, 1, 70, 10)]
    inputs[which][0, 0, 5, 3] = value
    inputs[3:3] = [None, None]
    out, want = op(*inputs, eps=1e-6), reference(*inputs, eps=1e-6)
    assert torch.equal(out.isnan(), want.isnan())
    assert torch.equal(out.isinf(), want.isinf())


@pytest.mark.parametrize(
    ("features", "value", "norm"),
    [(BF16, F32, BF16), (F32, BF16, F32), (BF16, BF16, F32), (F32, F32, BF16), (BF16, F32, None)],
)
def test_mixed_dtypes(features, value, norm):
    q, k = draw(1, 2, 300, 48, features), draw(1, 2, 300, 48, features, seed=1)
    v = draw(1, 2, 300, 40, value, seed=2)
    norms = (
        ()
        if norm is None
        else (draw(1, 2, 300, 48, norm, seed=3).abs(), draw(1, 2, 300, 48, norm, seed=4).abs())
    )
    for out_dtype in (None, BF16, F32, torch.float16):
        hold(q, k, v, *norms, eps=1e-6, out_dtype=out_dtype)


def test_value_of_another_width_and_few_heads_with_many_tokens():
    for tokens in (1, 2, 511, 512, 4500):
        q, k, v = draw(1, 1, tokens, 40), draw(1, 1, tokens, 40, seed=1), draw(1, 1, tokens, 24, seed=2)
        hold(q, k, v, eps=1e-6)


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_tokens_without_features_give_what_eps_leaves(dtype):
    q, k, v = draw(1, 2, 40, 32, dtype), draw(1, 2, 40, 32, dtype, seed=1), draw(1, 2, 40, 32, dtype, seed=2)
    q[:, :, 3] = -1.0
    assert (op(q, k, v, eps=1e-15)[:, :, 3] == 0).all()
    assert op(q, k, v, eps=0.0)[:, :, 3].isnan().all()


@pytest.mark.parametrize("channel_major", [False, True])
@pytest.mark.parametrize("dtype", [BF16, F32])
def test_a_floor_of_the_normaliser(dtype, channel_major):
    q, k, v = draw(1, 2, 80, 40, dtype), draw(1, 2, 80, 40, dtype, seed=1), draw(1, 2, 80, 40, dtype, seed=2)
    middle = float((q.double().relu() @ k.double().relu().sum(-2, keepdim=True).mT).median())
    for eps in (0.0, 1.0):  # half of the tokens are below
        hold(q, k, v, eps=eps, floor=middle, channel_major=channel_major)
    q[:, :, 3] = -1.0
    assert (op(q, k, v, eps=0.0, floor=1e-6, channel_major=channel_major)[:, :, 3] == 0).all()
    q[:, :, 3] = float("nan")
    assert op(q, k, v, eps=0.0, floor=1e-6, channel_major=channel_major)[:, :, 3].isnan().all()


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("which", range(5))
def test_non_finite_inputs(dtype, value, relu, which):
    inputs = [draw(1, 2, 70, 20, dtype, seed=seed) for seed in range(5)]
    inputs[3], inputs[4] = inputs[3].abs(), inputs[4].abs()
    inputs[which][0, 1, 5, 3] = value
    for count in (3, 5) if which < 3 else (5,):
        out, want = op(*inputs[:count], eps=1e-6, relu=relu), reference(*inputs[:count], eps=1e-6, relu=relu)
        assert torch.equal(out.isnan(), want.isnan())
        assert torch.equal(out.isinf(), want.isinf())


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (1, 0, 3, 4), (1, 2, 0, 4), (1, 2, 3, 0)])
@pytest.mark.parametrize("channel_major", [False, True])
def test_empty_dimensions(shape, channel_major):
    inputs = [draw(*shape, seed=seed) for seed in range(3)]
    options = {"eps": 1e-6, "channel_major": channel_major}
    assert torch.equal(op(*inputs, **options), reference(*inputs, **options))


def test_what_no_kernel_takes_is_the_reference():
    for dtype in (torch.float64, torch.float16):
        inputs = [draw(1, 2, 9, 8, dtype, seed=seed).abs() for seed in range(3)]
        assert torch.equal(op(*inputs, eps=1e-6), reference(*inputs, eps=1e-6))
    q, k, v = (draw(2, 2, 9, 8, seed=seed) for seed in range(3))
    assert torch.equal(op(q, k[:1], v, eps=1e-6), reference(q, k[:1], v, eps=1e-6))
    with pytest.raises(RuntimeError):
        op(q, k[..., :-1], v, eps=1e-6)
    turn = angles(1, 1, 9, 4)
    for more in (
        (q.abs(), k.abs(), *turn),
        (None, None, *(t.double() for t in turn)),
    ):
        assert torch.equal(op(q, k, v, *more, eps=1e-6), reference(q, k, v, *more, eps=1e-6))
    for wrong in ((turn[0], None), (turn[0][..., :3], turn[1]), (turn[0], turn[1][..., :5, :])):
        with pytest.raises(RuntimeError):
            op(q, k, v, None, None, *wrong, eps=1e-6)
    with pytest.raises(RuntimeError, match="norm_query and norm_key go together"):
        op(q, k, v, q.abs(), eps=1e-6)


@st.composite
def layouts(data, shape):
    """A tensor of ``shape`` in some memory order, with gaps or an expanded dimension."""
    order = data(st.permutations(range(4)))
    g = torch.Generator().manual_seed(data(st.integers(0, 99)))
    t = torch.randn([shape[i] + data(st.integers(0, 2)) for i in order], generator=g)
    t = t.permute([order.index(i) for i in range(4)])[tuple(slice(0, n) for n in shape)]
    wide = data(st.sampled_from([None, None, 0, 1, 2, 3]))
    return t if wide is None else t.narrow(wide, 0, 1).expand(shape)


@st.composite
def cases(data):
    batch, heads = data(st.integers(1, 2)), data(st.integers(1, 3))
    tokens = data(st.integers(1, 40) | st.integers(41, 600))
    dim, dim_v = data(st.integers(1, 70)), data(st.integers(1, 70))
    widths = [dim, dim, dim_v] + ([dim, dim] if data(st.booleans()) else [])
    types = [data(st.sampled_from([BF16, F32])) for _ in range(3)]
    inputs = [
        data(layouts((batch, heads, tokens, d))).to(types[(0, 0, 1, 2, 2)[i]]) for i, d in enumerate(widths)
    ]
    inputs[3:] = [t.abs() for t in inputs[3:]]
    options = {
        "eps": data(st.sampled_from([1e-15, 1e-2])),
        "floor": data(st.sampled_from([None, 1e-6, 10.0])),
        "relu": len(widths) == 3 or data(st.booleans()),
        "out_dtype": data(st.sampled_from([None, BF16, F32])),
        "channel_major": data(st.booleans()),
    }
    return inputs, options


@settings(max_examples=120, deadline=None, derandomize=True)
@given(cases())
def test_any_shape_stride_and_flag(case):
    inputs, options = case
    out, want = op(*inputs, **options), exact(*inputs, **options)
    assert torch.equal(out.isnan(), want.isnan())
    # The sum over tokens may cancel: the error is held against the size of its terms.
    size = exact(inputs[0].abs(), inputs[1].abs(), inputs[2].abs(), *inputs[3:], **options)
    bound = (want.abs() if out.dtype == BF16 else 0 * want) * 2**-8 + size.abs().nan_to_num() * 1e-5 + 1e-30
    assert ((out - want).nan_to_num().abs() <= bound).all()
    fake = module.fake(*inputs, **options)
    assert (out.shape, out.dtype) == (fake.shape, fake.dtype)
    assert all(a == b for n, a, b in zip(out.shape, out.stride(), fake.stride(), strict=False) if n > 1)


def test_one_result_whatever_the_number_of_threads():
    before = torch.get_num_threads()
    inputs = [draw(1, 3, 1500, 32, seed=seed) for seed in range(3)]
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(op(*inputs, eps=1e-15))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(results[0], other) for other in results[1:])


needs_bf16 = pytest.mark.skipif(
    active_isa() not in BF16_LEVELS, reason="no instructions for products of bfloat16: nothing is lowered"
)


@needs_bf16
@pytest.mark.parametrize("channel_major", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 700, 32), (1, 2, 1025, 112), (1, 2, 77, 17)])
def test_high_rounds_keys_and_values(shape, channel_major):
    """The bound: (1 + u)² - 1 of each term of the numerator, u of each of the normaliser, and sums in float32."""
    q, k, v = (draw(*shape, F32, "token", seed) for seed in range(3))
    options = {"eps": 1e-15, "channel_major": channel_major}
    reset_counters()
    with fxrewrite.quality("high"):
        high = op(q, k, v, **options)
    used = counters()["relu_linear_attention"]
    assert [name.rpartition(":")[2] for name in used] == ["channels_bf16" if channel_major else "tokens_bf16"]
    want, size, u = exact(q, k, v, **options), exact(q, k, v.abs(), **options), 2.0**-8
    error = (high - want).abs()
    assert (error <= (size * ((1 + u) ** 2 - 1) + want.abs() * u) / (1 - u) + size * 1e-5).all()
    assert rms(error) > 10 * rms(op(q, k, v, **options) - want)


@needs_bf16
@pytest.mark.parametrize("layout", ["head", "token", "channel"])
@pytest.mark.parametrize("features", ["own", "separate", "turned"])
def test_high_takes_keys_and_values_for_bfloat16(features, layout):
    """Queries, the normaliser's own features and the second product stay float32."""
    q, k, v, norm_q, norm_k = (draw(1, 3, 300, 40, F32, layout, seed) for seed in range(5))
    more = {
        "own": (),
        "separate": (norm_q.abs(), norm_k.abs()),
        "turned": (None, None, *angles(1, 1, 300, 20)),
    }
    inputs, rounded = (q, k, v, *more[features]), (q, k.bfloat16(), v.bfloat16(), *more[features])
    for channel_major in (False, True):
        options = {"eps": 1e-6, "channel_major": channel_major}
        want = op(*rounded, **options, out_dtype=F32)
        lossless = op(*inputs, **options)
        with fxrewrite.quality("high"):
            assert torch.equal(op(*inputs, **options), want)
            assert torch.equal(op(q, k.bfloat16(), v, *more[features], **options), want)
            assert torch.equal(op(*rounded, **options, out_dtype=F32), want)
        assert not torch.equal(lossless, want)


def test_high_lowers_nothing_of_narrow_inputs():
    inputs = [draw(1, 2, 300, 32, seed=seed) for seed in range(3)]
    lossless = op(*inputs, eps=1e-6)
    reset_counters()
    with fxrewrite.quality("high"):
        assert torch.equal(op(*inputs, eps=1e-6), lossless)
    assert not any("s_bf16" in name for name in counters()["relu_linear_attention"])


@pytest.mark.parametrize("options", [{}, {"channel_major": True, "out_dtype": F32}, {"relu": False}])
def test_opcheck(options):
    inputs = [draw(1, 2, 20, 16, seed=seed) for seed in range(5)]
    torch.library.opcheck(module.op, tuple(inputs), dict(eps=1e-6, **options))
    turn = (None, None, *angles(1, 1, 20, 8))
    torch.library.opcheck(module.op, (*inputs[:3], *turn), dict(eps=1e-6, **options))
