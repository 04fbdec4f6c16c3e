"""The CUDA kernels of ``relu_linear_attention``, run on the CPU, against float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

BF16, F32 = torch.bfloat16, torch.float32
reference = torch.ops.fxrewrite.relu_linear_attention_reference
LAYOUTS = {"head": (0, 1, 2, 3), "token": (0, 2, 1, 3), "channel": (0, 1, 3, 2)}


def exact(q, k, v, norm_q=None, norm_k=None, *, eps, floor=None, relu=True, **_):
    """The op's meaning, in float64."""
    q, k, v = q.double(), k.double(), v.double()
    if relu:
        q, k = q.relu(), k.relu()
    norm_q = q if norm_q is None else norm_q.double()
    norm_k = k if norm_k is None else norm_k.double()
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


def test_mixed_layouts(shim):
    q, k, v = (
        draw(1, 2, 90, 32, layout="channel"),
        draw(1, 2, 90, 32, seed=1),
        draw(1, 2, 90, 32, BF16, "head", 2),
    )
    hold(shim, q, k, v, eps=1e-6)
    hold(shim, k, q, q[..., ::2], eps=1e-6, channel_major=True)


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
    widths = [dim, dim, dim_v] + ([dim, dim] if data(st.booleans()) else [])
    types = [data(st.sampled_from([BF16, F32])) for _ in range(3)]
    inputs = [
        data(layouts((batch, heads, tokens, d))).to(types[(0, 0, 1, 2, 2)[i]]) for i, d in enumerate(widths)
    ]
    inputs[3:] = [t.abs() for t in inputs[3:]]
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
    size = exact(inputs[0].abs(), inputs[1].abs(), inputs[2].abs(), *inputs[3:], **options)
    bound = (want.abs() if out.dtype == BF16 else 0 * want) * 2**-8 + size.abs().nan_to_num() * 1e-5 + 1e-30
    assert ((out - want).nan_to_num().abs() <= bound).all()
