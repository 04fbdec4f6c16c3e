"""``fxrewrite::sdpa`` against float64, and against the errors that eager PyTorch makes."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from fxrewrite.ops import sdpa

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
INF = float("inf")
op, reference = torch.ops.fxrewrite.sdpa, torch.ops.fxrewrite.sdpa_reference


def exact(
    q,
    k,
    v,
    mask=None,
    *,
    is_causal=False,
    scale=None,
    enable_gqa=False,
    mask_fill=None,
    safe_softmax=True,
    softcap=0.0,
    sinks=None,
    window=0,
    **_,
):
    """The op's meaning, in float64."""
    q, k, v = q.double(), k.double(), v.double()
    if enable_gqa:
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None and mask.dtype == torch.bool:
        fill = -INF if mask_fill is None else mask_fill
        scores = scores.masked_fill(~mask, fill)
    elif mask is not None:
        scores = scores + mask.double()
    scores = scores.masked_fill(~seen(scores, is_causal, window), -INF)
    if sinks is None:
        weights = scores.softmax(-1)
    else:
        sink = sinks.double()[:, None, None]
        top = torch.maximum(scores.amax(-1, keepdim=True), sink)
        grown = (scores - top).exp()
        weights = grown / (grown.sum(-1, keepdim=True) + (sink - top).exp())
    if safe_softmax:
        weights = weights.masked_fill((scores == -INF).all(-1, keepdim=True), 0.0)
    return weights @ v


def seen(scores, is_causal, window):
    """Which keys a query may see, by their distance alone."""
    length, keys = scores.shape[-2:]
    distance = torch.arange(length)[:, None] - torch.arange(keys)
    allowed = torch.ones(length, keys, dtype=torch.bool)
    if is_causal:
        allowed &= distance >= 0
    if window:
        allowed &= distance.abs() < window
    return allowed


def eager(
    q,
    k,
    v,
    mask=None,
    *,
    is_causal=False,
    scale=None,
    enable_gqa=False,
    mask_fill=None,
    safe_softmax=True,
    softcap=0.0,
    sinks=None,
    window=0,
    **_,
):
    """What models run: the fused call for its own meaning, else the formula in the inputs' dtype."""
    if window and mask is None and safe_softmax and not softcap and sinks is None:
        mask, is_causal, window = seen(torch.empty(q.shape[2], k.shape[2]), is_causal, window), False, 0
    if mask_fill is None and safe_softmax and not softcap and sinks is None and not window:
        return F.scaled_dot_product_attention(
            q, k, v, mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if enable_gqa:
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = (scores / softcap).tanh() * softcap
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -INF if mask_fill is None else mask_fill)
    elif mask is not None:
        scores = scores + mask
    scores = scores.masked_fill(~seen(scores, is_causal, window), -INF)
    if sinks is not None:
        sink = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sink], -1)
        scores = scores - scores.amax(-1, keepdim=True)
        return scores.softmax(-1)[..., :-1].to(v.dtype) @ v
    return scores.softmax(-1).to(v.dtype) @ v


def rms(x: torch.Tensor) -> float:
    return x.double().square().mean().sqrt().item()


def hold(q, k, v, mask=None, **options):
    """The contract: error at most 1.25 times eager's, no drift, order of memory as asked."""
    out = op(q, k, v, mask, **options)
    want, usual = exact(q, k, v, mask, **options), eager(q, k, v, mask, **options)
    assert out.shape == want.shape
    assert out.dtype == q.dtype
    ordered = out.transpose(1, 2) if options.get("token_major", True) else out
    assert ordered.is_contiguous()
    assert torch.equal(out.isnan(), want.isnan())
    out, want, usual = (t.nan_to_num() for t in (out, want, usual))
    assert rms(out - want) <= 1.25 * rms(usual - want)
    drift, noise = (out - want).mean().item(), rms(out - want) / math.sqrt(out.numel())
    assert abs(drift) <= max(6 * noise, 2 * abs((usual - want).mean().item()))


def make(batch, heads, length, keys, dim, dim_v=None, groups=None, dtype=BF16, seed=0):
    g = torch.Generator().manual_seed(seed)
    groups, dim_v = groups or heads, dim_v or dim

    def draw(*shape):
        return torch.randn(*shape, generator=g).to(dtype)

    return draw(batch, heads, length, dim), draw(batch, groups, keys, dim), draw(batch, groups, keys, dim_v)


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize(
    "shape",
    [
        {"batch": 2, "heads": 3, "length": 200, "keys": 200, "dim": 64},
        {"batch": 1, "heads": 2, "length": 130, "keys": 777, "dim": 72},
        {"batch": 1, "heads": 2, "length": 300, "keys": 1100, "dim": 112},
        {"batch": 1, "heads": 4, "length": 97, "keys": 515, "dim": 128, "groups": 2},
        {"batch": 1, "heads": 2, "length": 65, "keys": 300, "dim": 40, "dim_v": 80},
        {"batch": 1, "heads": 2, "length": 65, "keys": 300, "dim": 33, "dim_v": 17},
        {"batch": 1, "heads": 1, "length": 50, "keys": 90, "dim": 256},
        {"batch": 2, "heads": 8, "length": 1, "keys": 1030, "dim": 128, "groups": 2},
        {"batch": 2, "heads": 4, "length": 3, "keys": 259, "dim": 80},
        {"batch": 1, "heads": 4, "length": 5, "keys": 2000, "dim": 96, "groups": 1},
        {"batch": 9, "heads": 1, "length": 1, "keys": 40, "dim": 16},
    ],
    ids=lambda s: "-".join(f"{k}{v}" for k, v in s.items()),
)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("safe", [False, True])
def test_error_is_at_most_that_of_eager(shape, dtype, causal, safe):
    hold(*make(**shape, dtype=dtype), is_causal=causal, enable_gqa="groups" in shape, safe_softmax=safe)


@pytest.mark.parametrize("scale", [0.0, -0.3, 1.0, 2.5])
@pytest.mark.parametrize("dtype", [BF16, F16, F32])
def test_scale(scale, dtype):
    hold(*make(1, 2, 70, 140, 64, dtype=dtype), scale=scale)


def score_sizes():
    yield {"batch": 2, "heads": 3, "length": 130, "keys": 130, "dim": 64}
    yield {"batch": 1, "heads": 4, "length": 100, "keys": 600, "dim": 72, "groups": 2}
    yield {"batch": 1, "heads": 4, "length": 2, "keys": 900, "dim": 80, "groups": 2}


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("softcap", [0.5, 3.0, 50.0, -3.0])
def test_softcap(softcap, dtype):
    for sizes in score_sizes():
        inputs, options = make(**sizes, dtype=dtype), {"enable_gqa": True, "softcap": softcap}
        hold(*inputs, **options, scale=1.0)
        if sizes["length"] > 2:  # two keys are too few numbers to compare errors of
            hold(*inputs, **options, is_causal=True, safe_softmax=False)
        mask = torch.rand(sizes["length"], sizes["keys"]) > 0.3
        hold(*inputs, mask, **options)
        hold(*inputs, torch.randn(mask.shape), **options, safe_softmax=False)


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("kind", [F32, BF16, torch.float16])
def test_sinks(kind, dtype):
    for sizes in score_sizes():
        inputs = make(**sizes, dtype=dtype)
        sinks = torch.linspace(-3, 6, 2 * sizes["heads"]).to(kind)[::2]
        options = {"enable_gqa": True, "sinks": sinks, "safe_softmax": False}
        hold(*inputs, **options)
        if sizes["length"] > 2:
            hold(*inputs, **options, is_causal=True, softcap=2.0)
        hold(*inputs, torch.rand(sizes["length"], sizes["keys"]) > 0.3, **options)


@pytest.mark.parametrize("length", [20, 1])
@pytest.mark.parametrize("safe", [False, True])
def test_sinks_at_their_extremes(length, safe):
    q, k, v = make(1, 5, length, 40, 32, dtype=F32)
    sinks = torch.tensor([-INF, -1e30, 1e30, -200.0, 200.0])
    out = op(q, k, v, sinks=sinks, safe_softmax=safe)
    assert torch.equal(out[:, 2], torch.zeros_like(out[:, 2]))
    assert torch.allclose(out, exact(q, k, v, sinks=sinks).float(), atol=1e-6)
    # no key is seen: the sink alone makes the softmax, or, where it is -inf, nothing does
    out = op(q, k, v, torch.zeros(length, 40, dtype=torch.bool), sinks=sinks, safe_softmax=safe)
    assert not out[:, 1:].any()
    assert not out[:, 0].any() if safe else out[:, 0].isnan().all()
    # what eager gives for a sink that is not a number, or infinite
    for sink in (float("nan"), INF):
        assert op(q, k, v, sinks=torch.full((5,), sink), safe_softmax=safe).isnan().all()


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("window", [1, 3, 64, 129, 10**6, 2**62])
def test_window(window, dtype):
    sizes = [(130, 130), (100, 1300), (700, 90), (3, 900), (1200, 1300), (8, 3)]
    for length, keys in sizes:
        inputs = make(1, 2, length, keys, 40, dtype=dtype)
        for causal in (False, True):
            out, want = (f(*inputs, window=window, is_causal=causal, safe_softmax=False) for f in (op, exact))
            assert torch.equal(out.isnan(), want.isnan())  # rows beyond the last key that see none
            atol = {BF16: 2e-2, F16: 2e-3, F32: 1e-6}[dtype]
            assert torch.allclose(out.double(), want, atol=atol, rtol=1e-2, equal_nan=True)
            if min(length, keys) < 8:  # too few numbers to compare errors of
                continue
            hold(*inputs, window=window, is_causal=causal)
            if length < keys:
                mask = torch.arange(keys) % 9 > 0
                hold(*inputs, mask, window=window, is_causal=causal, safe_softmax=False)


def test_window_over_more_keys_than_stay_packed():
    inputs = make(1, 1, 2500, 9000, 128)
    for causal in (False, True):
        hold(*inputs, window=300, is_causal=causal)


def broadcast_shapes(batch, heads, length, keys):
    yield (length, keys)
    yield (1, keys)
    yield (batch, 1, 1, keys)
    yield (batch, 1, length, keys)
    yield (1, heads, length, keys)
    yield (heads, 1, keys)
    yield (batch, heads, length, 1)
    yield (batch, heads, length, keys)
    yield (1, 1)


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("kind", [torch.bool, F32, BF16, torch.float16])
@pytest.mark.parametrize("length", [70, 2])
def test_masks_of_every_broadcast_and_dtype(dtype, kind, length):
    q, k, v = make(2, 3, length, 133, 48, dtype=dtype)
    fused = kind in (torch.bool, F32, dtype)
    for number, shape in enumerate(broadcast_shapes(2, 3, length, 133)):
        g = torch.Generator().manual_seed(number)
        mask = torch.randn(shape, generator=g)
        mask = mask > -0.5 if kind == torch.bool else mask.to(kind)
        hold(q, k, v, mask, safe_softmax=False)
        if length > 2:  # two keys are too few numbers to compare errors of
            hold(q, k, v, mask, safe_softmax=False, is_causal=True)
        if fused:
            hold(q, k, v, mask)
        if kind == torch.bool:
            hold(q, k, v, mask, mask_fill=-1e4, safe_softmax=False)


@pytest.mark.parametrize("kind", [torch.bool, F32, BF16])
def test_mask_strides(kind):
    q, k, v = make(2, 2, 40, 90, 32)
    base = torch.randn(2, 1, 90, 80)
    base = base > -0.5 if kind == torch.bool else base.to(kind)
    for mask in (base.mT[..., ::2, :], base.mT[..., :40, :], base.mT[:, :, :40].expand(2, 2, 40, 90)):
        hold(q, k, v, mask)


def test_mask_bytes_other_than_one_are_true():
    q, k, v = make(1, 1, 20, 40, 32)
    mask = torch.arange(800, dtype=torch.uint8).reshape(20, 40).view(torch.bool)
    hold(q, k, v, mask)


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("length", [37, 1])
@pytest.mark.parametrize("safe", [False, True])
@pytest.mark.parametrize("fill", [None, -INF, -1e9, torch.finfo(F32).min])
def test_wholly_masked_rows(dtype, length, safe, fill):
    q, k, v = make(2, 2, length, 700, 64, dtype=dtype)
    mask = torch.rand(2, 1, length, 700) > 0.5
    mask[:, :, 0] = False
    out = op(q, k, v, mask, mask_fill=fill, safe_softmax=safe)
    row = out[:, :, 0].double()
    if fill in (None, -INF):
        assert (row == 0).all() if safe else row.isnan().all()
    else:
        assert torch.allclose(row, v.double().mean(-2), atol={BF16: 4e-3, F16: 5e-4, F32: 1e-5}[dtype])
    want = exact(q, k, v, mask, mask_fill=fill, safe_softmax=safe)
    assert torch.equal(out.isnan(), want.isnan())
    assert torch.allclose(
        out[:, :, 1:].double(), want[:, :, 1:], atol={BF16: 2e-2, F16: 2e-3, F32: 1e-5}[dtype]
    )


def test_float_mask_of_the_lowest_number_gives_the_mean():
    q, k, v = make(1, 2, 9, 300, 64)
    for kind in (F32, BF16):
        out = op(q, k, v, torch.full((9, 300), torch.finfo(kind).min, dtype=kind))
        assert torch.allclose(out.double(), v.double().mean(-2, keepdim=True).expand(out.shape), atol=4e-3)


def poison(t, where, value):
    t = t.clone()
    t[where] = value
    return t


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("length", [40, 1])
@pytest.mark.parametrize("value", [float("nan"), INF, -INF])
@pytest.mark.parametrize("fill", [None, -1e4])
def test_non_finite_inputs(dtype, length, value, fill):
    q, k, v = make(1, 2, length, 90, 32, dtype=dtype)
    mask = torch.rand(length, 90) > 0.3
    mask[:, 0] = True
    mask[0, 7] = False
    options = {"mask_fill": fill, "safe_softmax": fill is None}
    for case in (
        (poison(q, (0, 1, 0, 3), value), k, v),
        (q, poison(k, (0, 1, 7, 3), value), v),
        (q, k, poison(v, (0, 1, 0, 3), value)),
    ):
        for m in (None, mask):
            # Written out, the formula: eager's fused bf16 kernel misses the NaN that a score of +inf gives.
            out, want = op(*case, m, **options), reference(*case, m, **{**options, "safe_softmax": False})
            assert torch.equal(out.isnan(), want.isnan())
            assert torch.equal(out.isinf(), want.isinf())


def test_nan_in_a_float_mask():
    q, k, v = make(1, 1, 8, 40, 32)
    mask = torch.zeros(8, 40)
    mask[3, 5] = float("nan")
    assert torch.equal(op(q, k, v, mask)[0, 0].isnan().any(-1), torch.arange(8) == 3)


@pytest.mark.parametrize(
    "shape", [(0, 2, 3, 4, 8), (1, 0, 3, 4, 8), (1, 2, 0, 4, 8), (1, 2, 3, 0, 8), (1, 2, 3, 4, 0)]
)
@pytest.mark.parametrize("safe", [False, True])
def test_empty_dimensions(shape, safe):
    q, k, v = make(*shape)
    args = (q, k, v) if shape[-1] else (q, k, make(1, 2, 3, 4, 8)[2])
    scale = 1.0 if shape[-1] == 0 else None
    out = op(*args, safe_softmax=safe, scale=scale)
    want = reference(*args, safe_softmax=safe, scale=scale)
    assert out.shape == want.shape
    assert torch.allclose(out, want, atol=1e-2, equal_nan=True)


def test_what_no_kernel_takes_is_the_reference():
    q, k, v = make(2, 4, 5, 9, 8, dtype=torch.float64)
    assert torch.equal(op(q, k, v), reference(q, k, v))
    q, k, v = make(2, 4, 5, 9, 8)
    assert torch.equal(op(q, k[:1], v[:1]), reference(q, k[:1], v[:1]))
    with pytest.raises(RuntimeError):
        op(q, k, v, torch.zeros(5, 9, dtype=torch.float16))
    with pytest.raises(RuntimeError):
        op(q, k.float(), v)
    with pytest.raises(RuntimeError):
        op(q, k, v, torch.zeros(5, 8))


@st.composite
def layouts(draw, shape):
    """A tensor of ``shape`` in some memory order, with gaps or an expanded dimension."""
    order = draw(st.permutations(range(4)))
    t = torch.randn(
        [shape[i] + draw(st.integers(0, 2)) for i in order],
        generator=torch.Generator().manual_seed(draw(st.integers(0, 99))),
    )
    t = t.permute([order.index(i) for i in range(4)])
    t = t[tuple(slice(0, n) for n in shape)]
    wide = draw(st.sampled_from([None, None, 0, 1, 2]))
    return t if wide is None else t.narrow(wide, 0, min(1, shape[wide])).expand(shape)


@st.composite
def cases(draw):
    batch, groups, group = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    length = draw(st.integers(1, 3) | st.integers(4, 90))
    keys, dim, dim_v = draw(st.integers(1, 150)), draw(st.integers(1, 70)), draw(st.integers(1, 70))
    heads = groups * group
    dtype = draw(st.sampled_from([BF16, F16, F32]))
    q, k, v = (
        draw(layouts((batch, h, n, d))).to(dtype)
        for h, n, d in ((heads, length, dim), (groups, keys, dim), (groups, keys, dim_v))
    )
    options = {
        "is_causal": draw(st.booleans()),
        "scale": draw(st.sampled_from([None, 0.7])),
        "enable_gqa": group > 1 or draw(st.booleans()),
        "safe_softmax": draw(st.booleans()),
        "token_major": draw(st.booleans()),
    }
    mask = None
    kind = draw(st.sampled_from([None, torch.bool, F32, BF16, torch.float16]))
    if kind is not None:
        shape = [draw(st.sampled_from([1, n])) for n in (batch, heads, length, keys)][
            draw(st.integers(0, 2)) :
        ]
        mask = torch.randn(shape)
        mask = mask > -1 if kind == torch.bool else mask.to(kind)
        if kind == torch.bool:
            options["mask_fill"] = draw(st.sampled_from([None, -INF, -1e4]))
        if kind not in (torch.bool, F32, dtype):
            options["safe_softmax"] = False
    if draw(st.integers(0, 3)) == 0:
        options["softcap"] = draw(st.sampled_from([0.7, 30.0]))
    if draw(st.integers(0, 3)) == 0:
        options["sinks"] = torch.randn(heads).to(draw(st.sampled_from([F32, BF16])))
    if draw(st.integers(0, 3)) == 0:
        options["window"] = draw(st.integers(1, 120))
    fused = options["safe_softmax"] and options.get("mask_fill") is None and "window" not in options
    if mask is not None and fused and "softcap" not in options and "sinks" not in options:
        options["is_causal"] = False  # the fused call forbids both
    return (q, k, v, mask), options


@settings(max_examples=150, deadline=None, derandomize=True)
@given(cases())
def test_any_shape_stride_and_flag(case):
    inputs, options = case
    out, want = op(*inputs, **options), exact(*inputs, **options)
    assert torch.equal(out.isnan(), want.isnan())
    atol = {BF16: 3e-2, F16: 4e-3, F32: 1e-5}[out.dtype]
    assert torch.allclose(
        out.double(), want, atol=atol, rtol=1e-5 if out.dtype == F32 else 1e-2, equal_nan=True
    )
    fake = sdpa.fake(*inputs, **options)
    assert (out.shape, out.dtype) == (fake.shape, fake.dtype)
    assert all(a == b for n, a, b in zip(out.shape, out.stride(), fake.stride(), strict=False) if n > 1)


def test_one_result_whatever_the_number_of_threads():
    before = torch.get_num_threads()
    inputs = make(2, 3, 150, 333, 72)
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append([op(*inputs), op(*inputs, is_causal=True), op(inputs[0][:, :, :1], *inputs[1:])])
    finally:
        torch.set_num_threads(before)
    for others in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], others, strict=False))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True, "token_major": False},
        {"mask_fill": -1e4, "safe_softmax": False},
        {"softcap": 5.0, "sinks": torch.zeros(2), "window": 7},
    ],
)
def test_opcheck(options):
    q, k, v = make(1, 2, 20, 30, 16)
    mask = torch.rand(20, 30) > 0.2 if "mask_fill" in options else None
    torch.library.opcheck(sdpa.op, (q, k, v, mask), options)


@pytest.mark.parametrize("value", [INF, -INF])
def test_an_infinite_value_stays_infinite_where_probabilities_are_split(value):
    """Queries laid out across heads: the framework's probabilities are float32, ours two bfloat16 parts."""
    q, k, v = make(2, 3, 8, 8, 32)
    q, k = (t.mT.contiguous().mT for t in (q, k))
    v[0, 1, 3, 5] = value
    out = op(q, k, v, token_major=False)
    assert torch.equal(out.isinf(), eager(q, k, v).isinf())
    assert out.isinf().sum() == 8
    assert not out.isnan().any()
