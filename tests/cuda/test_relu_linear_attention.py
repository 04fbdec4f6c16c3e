"""The CUDA kernels of ``relu_linear_attention``, run on the CPU, against float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

BF16, F32 = torch.bfloat16, torch.float32
reference = torch.ops.fxrewrite.relu_linear_attention_reference
LAYOUTS = {"head": (0, 1, 2, 3), "token": (0, 2, 1, 3), "channel": (0, 1, 3, 2)}


def turned(x, cos, sin):
    """Each pair (2i, 2i + 1) of ``x`` as a complex number, times cos + i·sin."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.complex(*torch.broadcast_tensors(cos, sin))).flatten(-2)


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


def draw(batch, heads, tokens, dim, dtype=BF16, layout="token", seed=0):
    """A [B, H, N, D] tensor in the order of memory that a model has it in."""
    order = LAYOUTS[layout]
    shape = [(batch, heads, tokens, dim)[d] for d in order]
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).permute(order)


def hold(shim, *inputs, **options):
    """The contract: error at most 1.25 times that of the chain in fp32, memory in the order asked."""
    out = shim.relu_linear_attention(*inputs, **options)
    want, usual = exact(*inputs, **options), reference(*inputs, **options)
    assert (out.shape, out.dtype, out.stride()) == (usual.shape, usual.dtype, usual.stride())
    assert rms(out - want) <= 1.25 * rms(usual - want)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize(
    "shape",
    # a head's width of each block size, several blocks, several chunks, tails in every dim
    [(2, 3, 300, 32), (1, 1, 513, 112), (1, 1, 300, 64), (1, 1, 130, 130), (1, 2, 77, 17), (1, 2, 5, 72)],
)
def test_error_is_at_most_that_of_the_chain(shim, shape, dtype, layout):
    q, k, v = (draw(*shape, dtype, layout, seed) for seed in range(3))
    hold(shim, q, k, v, eps=1e-15)
    hold(shim, q, k, v, eps=1e-5, channel_major=True, out_dtype=F32 if dtype == BF16 else BF16)


@pytest.mark.parametrize("layout", ["token", "channel"])
@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("dim", [32, 112, 144])
def test_features_of_the_normaliser(shim, dtype, layout, dim):
    rotated_q, rotated_k, v, q, k = (draw(2, 1, 260, dim, dtype, layout, seed) for seed in range(5))
    hold(
        shim,
        rotated_q,
        rotated_k,
        v,
        q.relu(),
        k.relu(),
        eps=1e-15,
        relu=False,
        channel_major=layout == "channel",
    )


@pytest.mark.parametrize(
    ("features", "value", "norm"),
    [(BF16, F32, BF16), (F32, BF16, F32), (BF16, BF16, F32), (F32, F32, BF16), (BF16, F32, None)],
)
def test_mixed_dtypes_and_widths(shim, features, value, norm):
    q, k = draw(1, 2, 100, 48, features), draw(1, 2, 100, 48, features, seed=1)
    v = draw(1, 2, 100, 40, value, seed=2)
    norms = [draw(1, 2, 100, 48, norm, seed=seed).abs() for seed in (3, 4)] if norm else []
    for out_dtype in (None, BF16, F32):
        hold(shim, q, k, v, *norms, eps=1e-6, out_dtype=out_dtype)


@pytest.mark.parametrize("tokens", [90, 96])  # eight neighbours can be loaded at once along 96
@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize(
    "layouts",
    [("channel", "token", "head"), ("token", "channel", "channel"), ("channel", "channel", "token")],
)
def test_mixed_layouts(shim, layouts, dtype, tokens):
    q, k, v = (draw(1, 2, tokens, 32, dtype, layout, seed) for seed, layout in enumerate(layouts))
    hold(shim, q, k, v, eps=1e-6)
    hold(shim, k, q, q[..., ::2], eps=1e-6, channel_major=True)
    hold(shim, q, k, v, k.abs(), q.abs(), eps=1e-6)


# ----------------------------------------------------------------------------------- rotary embeddings


def angles(*sizes, dtype=F32):
    """cos and sin; with a step of 2 in memory, as slices of a table have."""
    angle = torch.randn(*sizes[:-1], 2 * sizes[-1], generator=torch.Generator().manual_seed(9))
    return angle.cos().to(dtype)[..., ::2], angle.sin().to(dtype)[..., 1::2]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize(
    "shape",
    [(2, 3, 300, 32), (1, 1, 513, 112), (1, 1, 300, 64), (1, 1, 130, 130), (1, 2, 77, 18), (1, 2, 5, 72)],
)
def test_turned_features(shim, counted, shape, dtype, layout):
    q, k, v = (draw(*shape, dtype, layout, seed) for seed in range(3))
    turn = angles(1, 1, shape[2], shape[3] // 2)
    hold(shim, q, k, v, None, None, *turn, eps=1e-15)
    features = q.relu(), k.relu()
    hold(shim, *features, v, None, None, *turn, eps=1e-5, relu=False, channel_major=True, out_dtype=F32)
    assert counted() == {"relu_linear_attention": {"cuda:tokens": 1, "cuda:channels": 1}}


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("sizes", [(70, 10), (2, 1, 70, 10), (1, 3, 70, 10), (2, 3, 1, 10), (2, 3, 70, 10)])
def test_angles_of_any_shape(shim, sizes, dtype):
    q, k, v = (draw(2, 3, 70, 20, seed=seed) for seed in range(3))
    hold(shim, q, k, v, None, None, *angles(*sizes, dtype=dtype), eps=1e-6)
    cos, sin = angles(*sizes, dtype=dtype)[0], angles(1, 1, 70, 10)[1]  # each of its own shape
    hold(shim, q, k, v, None, None, cos, sin, eps=1e-6, channel_major=True)


@pytest.mark.parametrize(
    ("queries", "keys", "value"), [(BF16, F32, BF16), (F32, BF16, BF16), (BF16, BF16, F32)]
)
def test_turned_features_of_mixed_dtypes(shim, queries, keys, value):
    q, k, v = (
        draw(1, 2, 300, 48, queries),
        draw(1, 2, 300, 48, keys, seed=1),
        draw(1, 2, 300, 40, value, seed=2),
    )
    for out_dtype in (BF16, F32):
        hold(shim, q, k, v, None, None, *angles(1, 1, 300, 24), eps=1e-6, out_dtype=out_dtype)


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("which", range(5))
def test_non_finite_inputs_turned(shim, dtype, value, which):
    inputs = [
        *(draw(1, 2, 70, 20, dtype, seed=seed) for seed in range(3)),
        *map(torch.clone, angles(1, 2, 70, 10)),
    ]
    inputs[which][0, 1, 69, 3] = value  # of the last token, which those behind it must not read
    inputs[3:3] = [None, None]
    for relu in (True, False):
        out = shim.relu_linear_attention(*inputs, eps=1e-6, relu=relu)
        want = reference(*inputs, eps=1e-6, relu=relu)
        assert torch.equal(out.isnan(), want.isnan())
        assert torch.equal(out.isinf(), want.isinf())


def test_what_is_turned_with_a_normaliser_of_its_own_is_the_references(shim, counted):
    q, k, v = (draw(1, 2, 9, 8, seed=seed) for seed in range(3))
    cos, sin = angles(1, 1, 9, 4)
    inputs = (q, k, v, q.abs(), k.abs(), cos, sin)
    assert torch.equal(shim.relu_linear_attention(*inputs, eps=1e-6), reference(*inputs, eps=1e-6))
    inputs = (q, k, v, None, None, cos.double(), sin.double())
    assert torch.equal(shim.relu_linear_attention(*inputs, eps=1e-6), reference(*inputs, eps=1e-6))
    assert counted() == {"relu_linear_attention": {"reference": 2}}
    for wrong in ((cos, None), (cos[..., :3], sin), (cos, sin[..., :5, :])):
        with pytest.raises(RuntimeError):
            shim.relu_linear_attention(q, k, v, None, None, *wrong, eps=1e-6)


# ------------------------------------------------------------------------------------- quality "high"


@pytest.fixture
def at_high(shim):
    """Calls the op at quality "high"."""

    def call(*inputs, **options):
        shim._allow_cuda_bf16_operands(True)
        try:
            return shim.relu_linear_attention(*inputs, **options)
        finally:
            shim._allow_cuda_bf16_operands(False)

    return call


U = 2.0**-8  # the relative error of rounding to bfloat16, whose significands have eight bits


@pytest.mark.parametrize("turn", [False, True])
@pytest.mark.parametrize("layouts", [("token",) * 3, ("channel",) * 3, ("token", "channel", "token")])
@pytest.mark.parametrize(
    ("dtypes", "dim"), [((F32,) * 3, 32), ((F32,) * 3, 112), ((F32,) * 3, 64), ((BF16, BF16, F32), 72)]
)
def test_high_rounds_keys_and_values_for_their_product_alone(
    shim, counted, at_high, dtypes, dim, layouts, turn
):
    q, k, v = (draw(1, 2, 300, dim, dtypes[i], layouts[i], seed=i) for i in range(3))
    cos, sin = angles(1, 1, 300, dim // 2) if turn else (None, None)
    inputs = (q, k, v, None, None, cos, sin)
    out = at_high(*inputs, eps=1e-6, out_dtype=F32)
    assert counted() == {"relu_linear_attention": {"cuda:tokens_bf16": 1}}
    turned_q, turned_k = q.relu(), k.relu()
    if turn:
        turned_q, turned_k = (turned(x.float(), cos, sin).to(x.dtype) for x in (turned_q, turned_k))
    size = exact(turned_q.abs(), turned_k.abs(), v.abs(), q.relu(), k.relu(), eps=1e-6)
    error = (out - exact(*inputs, eps=1e-6)).abs()
    rounding = U if BF16 in dtypes[:2] and turn else 0  # of the turned features, which is the op's meaning
    assert (error <= size * ((1 + U) ** 2 * (1 + rounding) ** 2 - 1 + 1e-5)).all()
    # what was rounded before gives the same: the sum of keys, the queries and their products stay as they are
    inputs = (turned_q, turned_k.bfloat16(), v.bfloat16(), q.relu(), k.relu())
    rest = (out - exact(*inputs, eps=1e-6, relu=False)).abs()
    near = 2.0**-8 if turn else 0  # a turned key near the middle of two bfloat16 may go to either
    assert (rest <= size * (1e-5 + near * 0.05)).all()
    lossless = shim.relu_linear_attention(q, k, v, None, None, cos, sin, eps=1e-6, out_dtype=F32)
    assert rms(lossless - out) > 0.1 * U * rms(size) / 300**0.5


def test_high_changes_nothing_where_all_is_bfloat16(shim, counted, at_high):
    for turn in ((), (None, None, *angles(1, 1, 70, 10))):
        inputs = [*(draw(1, 2, 70, 20, seed=seed) for seed in range(3)), *turn]
        assert torch.equal(at_high(*inputs, eps=1e-6), shim.relu_linear_attention(*inputs, eps=1e-6))
    assert counted() == {"relu_linear_attention": {"cuda:tokens": 4}}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("which", range(5))
def test_non_finite_inputs_at_high(shim, at_high, value, which):
    inputs = [draw(1, 2, 70, 20, F32, seed=seed) for seed in range(5)]
    inputs[3], inputs[4] = inputs[3].abs(), inputs[4].abs()
    inputs[which][0, 1, 5, 3] = value
    for count in (3, 5) if which < 3 else (5,):
        out, want = at_high(*inputs[:count], eps=1e-6), reference(*inputs[:count], eps=1e-6)
        assert torch.equal(out.isnan(), want.isnan())
        assert torch.equal(out.isinf(), want.isinf())


# ------------------------------------------------------------------------------------------ in general


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_tokens_without_features_give_what_eps_leaves(shim, dtype):
    q, k, v = (draw(1, 2, 40, 32, dtype, seed=seed) for seed in range(3))
    q[:, :, 3] = -1.0
    assert (shim.relu_linear_attention(q, k, v, eps=1e-15)[:, :, 3] == 0).all()
    assert shim.relu_linear_attention(q, k, v, eps=0.0)[:, :, 3].isnan().all()
    assert (shim.relu_linear_attention(q, k, v, eps=0.0, floor=1e-6)[:, :, 3] == 0).all()


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_a_floor_of_the_normaliser(shim, dtype):
    q, k, v = (draw(1, 2, 40, 32, dtype, seed=seed) for seed in range(3))
    middle = float((q.double().relu() @ k.double().relu().sum(-2, keepdim=True).mT).median())
    hold(shim, q, k, v, eps=0.0, floor=middle)
    hold(shim, q, k, v, eps=1.0, floor=middle)


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("which", range(5))
def test_non_finite_inputs(shim, dtype, value, relu, which):
    inputs = [draw(1, 2, 70, 20, dtype, seed=seed) for seed in range(5)]
    inputs[3], inputs[4] = inputs[3].abs(), inputs[4].abs()
    inputs[which][0, 1, 5, 3] = value
    for count in (3, 5) if which < 3 else (5,):
        out = shim.relu_linear_attention(*inputs[:count], eps=1e-6, relu=relu)
        want = reference(*inputs[:count], eps=1e-6, relu=relu)
        assert torch.equal(out.isnan(), want.isnan())
        assert torch.equal(out.isinf(), want.isinf())


def test_the_order_of_threads_does_not_matter(shim):
    """The shim draws it anew at each call."""
    inputs = [draw(1, 3, 400, 32, seed=seed) for seed in range(3)]
    results = [shim.relu_linear_attention(*inputs, eps=1e-15) for _ in range(3)]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (1, 0, 3, 4), (1, 2, 0, 4), (1, 2, 3, 0)])
def test_empty_dimensions(shim, shape):
    inputs = [draw(*shape, seed=seed) for seed in range(3)]
    assert torch.equal(shim.relu_linear_attention(*inputs, eps=1e-6), reference(*inputs, eps=1e-6))


def test_what_no_kernel_takes_is_the_reference_and_counted(shim, counted):
    inputs = [draw(1, 2, 9, 8, torch.float64, seed=seed).abs() for seed in range(3)]
    assert torch.equal(shim.relu_linear_attention(*inputs, eps=1e-6), reference(*inputs, eps=1e-6))
    q, k, v = (draw(2, 2, 9, 8, seed=seed) for seed in range(3))
    assert torch.equal(shim.relu_linear_attention(q, k[:1], v, eps=1e-6), reference(q, k[:1], v, eps=1e-6))
    shim.relu_linear_attention(q, k, v, eps=1e-6)
    assert counted() == {"relu_linear_attention": {"reference": 2, "cuda:tokens": 1}}
    with pytest.raises(RuntimeError):
        shim.relu_linear_attention(q, k[..., :-1], v, eps=1e-6)


@st.composite
def layouts(data, shape):
    """A tensor of ``shape`` in some memory order, with gaps or an expanded dimension."""
    order = data(st.permutations(range(4)))
    gaps = [data(st.integers(0, 2)) for _ in order]
    filled = torch.full([shape[i] + gap for i, gap in zip(order, gaps, strict=True)], float("nan"))
    t = filled.permute([order.index(i) for i in range(4)])[tuple(slice(0, n) for n in shape)]
    t.copy_(torch.randn(shape, generator=torch.Generator().manual_seed(data(st.integers(0, 99)))))
    wide = data(st.sampled_from([None, None, 0, 1, 2, 3]))
    return t if wide is None else t.narrow(wide, 0, 1).expand(shape)


@st.composite
def cases(data):
    batch, heads, tokens = data(st.integers(1, 2)), data(st.integers(1, 2)), data(st.integers(1, 150))
    dim, dim_v = data(st.integers(1, 70)), data(st.integers(1, 70))
    extra = data(st.sampled_from(["norm", "turn", ""]))
    dim += dim % 2 if extra == "turn" else 0
    widths = [dim, dim, dim_v] + ([dim, dim] if extra == "norm" else [])
    types = [data(st.sampled_from([BF16, F32])) for _ in range(3)]
    inputs = [
        data(layouts((batch, heads, tokens, d))).to(types[(0, 0, 1, 2, 2)[i]]) for i, d in enumerate(widths)
    ]
    inputs[3:] = [t.abs() for t in inputs[3:]]
    if extra == "turn":
        sizes = [size if data(st.booleans()) else 1 for size in (batch, heads, tokens)]
        inputs += [None, None, *angles(*sizes, dim // 2, dtype=data(st.sampled_from([BF16, F32])))]
    options = {
        "eps": data(st.sampled_from([1e-15, 1e-2])),
        "relu": len(widths) == 3 or data(st.booleans()),
        "out_dtype": data(st.sampled_from([None, BF16, F32])),
        "channel_major": data(st.booleans()),
    }
    return inputs, options


@settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(case=cases())
def test_any_shape_stride_and_flag(shim, case):
    inputs, options = case
    out, want = shim.relu_linear_attention(*inputs, **options), exact(*inputs, **options)
    assert torch.equal(out.isnan(), want.isnan())
    # The sum over tokens may cancel: the error is held against the size of its terms.
    relative = 1e-5
    if len(inputs) > 5:  # a·cos - b·sin is at most |a| + |b|, and is rounded to the dtype of the features
        q, k = (t.relu() for t in inputs[:2])
        pairs = [t.unflatten(-1, (-1, 2)).sum(-1).repeat_interleave(2, -1) for t in (q, k)]
        size = exact(*pairs, inputs[2].abs(), q, k, **options)
        relative += 1.01 * ((1 + U) ** sum(t.dtype == BF16 for t in inputs[:2]) - 1)
    else:
        size = exact(*(t.abs() for t in inputs[:3]), *inputs[3:], **options)
    bound = (want.abs() if out.dtype == BF16 else 0 * want) * U + size.abs().nan_to_num() * relative + 1e-30
    assert ((out - want).nan_to_num().abs() <= bound).all()
