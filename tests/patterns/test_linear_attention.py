"""Linear attention with ReLU: the forms of SANA, DC-AE and SANA-Video, and the twins that are none."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fxrewrite.report import Reason
from tests.support.graphs import assert_right, lines, rewritten

pytestmark = pytest.mark.usefixtures("any_kernel")


def t(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 * seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def channels_first(dtype=torch.float32, tokens=40, width=8):
    """q, k, v as SANA has them: [batch, heads, width, tokens]."""
    # Heads enough to take a mean over: all tokens of a head share the errors of its sums.
    return tuple(t(2, 12, width, tokens, seed=i, dtype=dtype) for i in (1, 2, 3))


def tokens_first(dtype=torch.float32):
    return tuple(x.mT.contiguous() for x in channels_first(dtype))


def sana(q, k, v):
    return sana_with(q, k, v, 1e-15)


def sana_with(q, k, v, eps):
    """diffusers' SanaLinearAttnProcessor2_0."""
    q, k = F.relu(q), F.relu(k).transpose(2, 3)
    q, k, v = q.float(), k.float(), v.float()
    v = F.pad(v, (0, 0, 0, 1), mode="constant", value=1.0)
    hidden = torch.matmul(torch.matmul(v, k), q)
    return hidden[:, :, :-1] / (hidden[:, :, -1:] + eps)


def sana_back(q, k, v):
    return sana(q, k, v).to(q.dtype)


def padded(q, k, v):
    v = F.pad(v, (0, 1), value=1.0)
    out = q.relu() @ (k.relu().mT @ v)
    return out[..., :-1] / (out[..., -1:] + 1e-6)


def summed(q, k, v):
    q, k = q.relu(), k.relu()
    return (q @ (k.mT @ v)) / (q @ k.sum(-2, keepdim=True).mT + 1e-6)


def summed_away(q, k, v):
    q, k = q.relu(), k.relu()
    return (q @ (k.mT @ v)) / (q @ k.sum(2).unsqueeze(-1) + 1e-6)


def heads_last(dtype=torch.float32):
    return tuple(x.transpose(1, 2).contiguous() for x in tokens_first(dtype))


def einsums(q, k, v):
    q, k = q.relu(), k.relu()
    normaliser = torch.einsum("bnhd,bhd->bnh", q, k.sum(1)).unsqueeze(-1) + 1e-6
    return torch.einsum("bnhd,bhde->bnhe", q, torch.einsum("bnhd,bnhe->bhde", k, v)) / normaliser


def quadratic(q, k, v):
    weights = q.relu() @ k.relu().mT
    return (weights / (weights.sum(-1, keepdim=True) + 1e-6)) @ v


def quadratic_dcae(q, k, v):
    """diffusers' SanaMultiscaleLinearAttention, apply_quadratic_attention."""
    scores = torch.matmul(k.relu().transpose(-1, -2), q.relu())
    scores = scores.to(dtype=torch.float32)
    scores = scores / (torch.sum(scores, dim=2, keepdim=True) + 1e-15)
    return torch.matmul(v, scores.to(v.dtype))


def turn(x):
    """A rotation of pairs, as a rotary embedding is."""
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * 0.6 - b * 0.8, a * 0.8 + b * 0.6], -1).flatten(-2)


def rotary(q, k, v):
    """SANA-Video: the numerator sees turned features, the normaliser those before."""
    q, k = q.relu(), k.relu()
    return (turn(q) @ (turn(k).mT @ v)) / (q @ k.sum(-2, keepdim=True).mT + 1e-6)


def written(x, cos, sin):
    """diffusers' apply_rotary_emb of Wan and SANA-Video; cos and sin hold each number twice."""
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    c, s = cos[..., 0::2], sin[..., 1::2]
    out = torch.empty_like(x)
    out[..., 0::2] = a * c - b * s
    out[..., 1::2] = a * s + b * c
    return out.type_as(x)


def stacked(x, cos, sin):
    c, s = cos[..., ::2], sin[..., ::2]
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([c * a - s * b, b * c + s * a], dim=-1).flatten(-2).to(x.dtype)


def selected(x, cos, sin):
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    a, b = pairs[..., 0], pairs[..., 1]
    c, s = cos[..., ::2], sin[..., ::2]
    return torch.stack([a * c - b * s, a * s + b * c], dim=-1).reshape(x.shape)


def sana_video(turn_q, turn_k=None, swap_keys=False, cast=True):
    """diffusers' SanaLinearAttnProcessor3_0, heads after tokens."""

    def function(q, k, v, cos, sin):
        q, k = F.relu(q), F.relu(k)
        turned_q = turn_q(q, cos, sin)
        turned_k = (turn_k or turn_q)(k, *((sin, cos) if swap_keys else (cos, sin)))
        q, k, turned_q, turned_k, v = (x.permute(0, 2, 3, 1) for x in (q, k, turned_q, turned_k, v))
        turned_q, turned_k, wide = turned_q.float(), turned_k.float(), v.float()
        z = 1 / (k.sum(dim=-1, keepdim=True).transpose(-2, -1) @ q + 1e-15)
        out = (wide @ turned_k.transpose(-1, -2)) @ turned_q * z
        out = out.flatten(1, 2).transpose(1, 2)
        return out.to(v.dtype) if cast else out

    return function


def table(width=8, tokens=40, dtype=torch.float32):
    """cos and sin of the angles of pairs, each twice: [1, tokens, 1, width]."""
    angles = t(1, tokens, 1, width // 2, seed=7)
    return tuple(x.repeat_interleave(2, -1).to(dtype) for x in (angles.cos(), angles.sin()))


TURNED = {
    "SANA-Video": (sana_video(written), (*heads_last(), *table())),
    "SANA-Video, bfloat16": (sana_video(written), (*heads_last(torch.bfloat16), *table())),
    "all in bfloat16": (
        sana_video(written),
        (*heads_last(torch.bfloat16), *table(dtype=torch.bfloat16)),
    ),
    "stacked": (sana_video(stacked), (*heads_last(torch.bfloat16), *table())),
    "selected": (sana_video(selected), (*heads_last(), *table())),
    "spelled in two ways": (sana_video(written, lambda x, c, s: written(x, c, s)), (*heads_last(), *table())),
    "not cast back": (sana_video(written, cast=False), (*heads_last(torch.bfloat16), *table())),
    "angles of each head": (
        sana_video(stacked),
        (*heads_last(), *(x.repeat(1, 1, 12, 1) for x in table())),
    ),
}


@pytest.mark.parametrize(("function", "inputs"), TURNED.values(), ids=list(TURNED))
def test_rotary_embeddings_are_part_of_the_site(function, inputs):
    inputs = (*positive(inputs[:3]), *inputs[3:])
    found = rewritten(function, *inputs)
    assert found.of("linear_attention").rule == "RotaryReluAttention"
    assert "cos=" in found.after
    narrow = function(*inputs).dtype == torch.bfloat16
    for gone in ("relu.default", "copy_", "stack", "mul.", *(["to.dtype"] if narrow else [])):
        assert gone not in found.after
    assert_right(found, function, *inputs)
    assert found.gm(*inputs).stride() == function(*inputs).stride()


def half_split(x, cos, sin):
    """The other rotary embedding: pairs are (i, i + D / 2)."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def other_sign(x, cos, sin):
    a, b = x[..., ::2], x[..., 1::2]
    c, s = cos[..., ::2], sin[..., ::2]
    return torch.stack([a * c + b * s, b * c - a * s], -1).flatten(-2)


def not_a_rotation(x, cos, sin):
    a, b = x[..., ::2], x[..., 1::2]
    c, s = cos[..., ::2], sin[..., ::2]
    return torch.stack([a * c - b * s, a * c + b * s], -1).flatten(-2)


def odd_before_even(x, cos, sin):
    a, b = x[..., 1::2], x[..., ::2]
    c, s = cos[..., ::2], sin[..., ::2]
    return torch.stack([a * c - b * s, a * s + b * c], -1).flatten(-2)


def neighbours_in_tokens(x, cos, sin):
    """Pairs along another dim."""
    a, b = x[:, ::2], x[:, 1::2]
    c, s = cos[:, ::2], sin[:, ::2]
    return torch.stack([a * c - b * s, a * s + b * c], 2).flatten(1, 2)


def side_by_side(x, cos, sin):
    a, b = x[..., ::2], x[..., 1::2]
    c, s = cos[..., ::2], sin[..., ::2]
    return torch.cat([a * c - b * s, a * s + b * c], -1)


def written_again(x, cos, sin):
    out = written(x, cos, sin)
    out[..., 0::2] = x[..., 1::2]
    return out


def half_written(x, cos, sin):
    out = torch.zeros_like(x)
    out[..., 0::2] = x[..., 0::2] * cos[..., 0::2] - x[..., 1::2] * sin[..., 0::2]
    return out


def kept_wide(x, cos, sin):
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    c, s = cos[..., 0::2], sin[..., 1::2]
    return torch.stack([a * c - b * s, a * s + b * c], -1).flatten(-2)


OUTSIDE = {
    "pairs (i, i + D / 2)": sana_video(half_split),
    "the other sign": sana_video(other_sign),
    "no rotation": sana_video(not_a_rotation),
    "odd before even": sana_video(odd_before_even),
    "pairs of tokens": sana_video(neighbours_in_tokens),
    "halves side by side": sana_video(side_by_side),
    "written again": sana_video(written_again),
    "half of it written": sana_video(half_written),
    "cos and sin exchanged for the keys": sana_video(written, swap_keys=True),
    "keys turned by another embedding": sana_video(written, half_split),
    "queries alone": sana_video(written, lambda x, c, s: x * 1.5),
    "turned features wider than those before": sana_video(kept_wide),
}


@pytest.mark.parametrize("function", OUTSIDE.values(), ids=list(OUTSIDE))
def test_embeddings_that_the_op_does_not_have_stay_in_the_graph(function):
    inputs = (*positive(heads_last(torch.bfloat16)), *table())
    found = rewritten(function, *inputs)
    assert "cos=" not in found.after
    assert found.of("linear_attention").matched  # with the features as they come
    assert_right(found, function, *inputs)


def test_a_cast_at_the_end_belongs_to_the_site():
    for function, inputs in (
        (sana_back, channels_first(torch.bfloat16)),
        (sana_flat, channels_first(torch.bfloat16)),
    ):
        found = rewritten(function, *inputs)
        assert "out_dtype=torch.bfloat16" in found.after
        assert "to.dtype" not in found.after
        assert found.gm(*inputs).stride() == function(*inputs).stride()


def sana_flat(q, k, v):
    return sana(q, k, v).flatten(1, 2).transpose(1, 2).to(q.dtype)


def test_a_cast_that_widens_or_is_not_alone_is_none_of_the_site():
    inputs = channels_first(torch.bfloat16)

    def both(q, k, v):
        out = sana(q, k, v)
        return out, out.to(q.dtype)

    for function in (both, lambda q, k, v: sana(q, k, v).double()):
        found = rewritten(function, *inputs)
        assert found.of("linear_attention").matched
        assert "out_dtype=torch.float32" in found.after


SPELLINGS = {
    "SANA": (sana, channels_first()),
    "SANA, bfloat16": (sana_back, channels_first(torch.bfloat16)),
    "SANA, eps 0": (lambda q, k, v: sana_with(q, k, v, 0.0), channels_first()),
    "tokens first": (padded, tokens_first()),
    "eps on the left": (
        lambda q, k, v: (lambda o: o[..., :-1] / (1e-6 + o[..., -1:]))(
            q.relu() @ (k.relu().mT @ F.pad(v, (0, 1), value=1.0))
        ),
        tokens_first(),
    ),
    "bounds counted from the start": (
        lambda q, k, v: (lambda o: o[..., :8] / (o[..., 8:] + 1e-6))(
            q.relu() @ (k.relu().mT @ F.pad(v, (0, 1), value=1.0))
        ),
        tokens_first(),
    ),
    "clamp": (
        lambda q, k, v: (lambda o: o[..., :-1] / (o[..., -1:] + 1e-6))(
            q.clamp_min(0) @ (k.clamp(min=0).mT @ F.pad(v, (0, 1), value=1.0))
        ),
        tokens_first(),
    ),
    "times the reciprocal": (
        lambda q, k, v: (lambda o: o[..., :-1] * (1 / (o[..., -1:] + 1e-6)))(
            q.relu() @ (k.relu().mT @ F.pad(v, (0, 1), value=1.0))
        ),
        tokens_first(),
    ),
    "normaliser with a bound": (
        lambda q, k, v: (lambda o: o[..., :-1] / o[..., -1:].clamp(min=30.0))(
            q.relu() @ (k.relu().mT @ F.pad(v, (0, 1), value=1.0))
        ),
        tokens_first(),
    ),
    "normaliser from a sum, with a bound and eps": (
        lambda q, k, v: (
            (q.relu() @ (k.relu().mT @ v))
            / ((q.relu() * k.relu().sum(-2, keepdim=True)).sum(-1, keepdim=True).clamp_min(30.0) + 1e-6)
        ),
        tokens_first(),
    ),
    "normaliser from a sum": (summed, tokens_first()),
    "normaliser from a sum, bfloat16": (summed, tokens_first(torch.bfloat16)),
    "normaliser from a sum without its dim": (summed_away, tokens_first()),
    "einsum, heads after tokens": (einsums, heads_last()),
    "einsum, heads after tokens, bfloat16": (einsums, heads_last(torch.bfloat16)),
    "weights first": (quadratic, tokens_first()),
    "weights first, channels first": (quadratic_dcae, channels_first()),
    "rotary": (rotary, tokens_first()),
    "values of another width": (padded, (*tokens_first()[:2], t(2, 12, 40, 5))),
    "one head": (padded, tuple(x[:, :1] for x in tokens_first())),
    "several lengths": (padded, (tokens_first()[0][:, :, :9], *tokens_first()[1:])),
}


def positive(inputs):
    """No row of features is all zero: the quotient is well conditioned in every dtype."""
    q, k, v = inputs
    return q + 0.5, k + 0.5, v


@pytest.mark.parametrize(("function", "inputs"), SPELLINGS.values(), ids=list(SPELLINGS))
def test_spellings(function, inputs):
    inputs = positive(inputs)
    found = rewritten(function, *inputs)
    site = found.of("linear_attention")
    assert site.matched, site.reason
    assert "matmul" not in found.after
    assert_right(found, function, *inputs)


def test_before_and_after():
    found = rewritten(padded, *tokens_first())
    assert found.before == lines("""
        pad = pad.default(v_1, [0, 1], constant, 1.0)
        relu = relu.default(q_1)
        relu_1 = relu.default(k_1)
        m_t = mT.default(relu_1)
        matmul = matmul.default(m_t, pad)
        matmul_1 = matmul.default(relu, matmul)
        slice_1 = slice.Tensor(matmul_1, 3, 0, -1)
        slice_2 = slice.Tensor(matmul_1, 3, -1, 9223372036854775807)
        add = add.Tensor(slice_2, 1e-06)
        div = div.Tensor(slice_1, add)
        return div
    """)
    name = "relu_linear_attention_default"
    head = f"{name} = fxrewrite.relu_linear_attention.default(q_1, k_1, v_1, None, None, eps=1e-06, relu=True"
    assert found.after.startswith(head)
    assert found.after.endswith(f"channel_major=False)\nreturn {name}")
    assert found.of("linear_attention").rule == "PaddedReluAttention"


def test_the_features_of_the_normaliser():
    found = rewritten(rotary, *tokens_first())
    assert found.of("linear_attention").rule == "RotaryReluAttention"
    assert "relu=False" in found.after


@pytest.mark.parametrize("tokens", [40, 56])
def test_symbolic_length(tokens):
    found = rewritten(sana_back, *positive(channels_first(torch.bfloat16)), dynamic=True)
    assert found.of("linear_attention").matched
    assert_right(found, sana_back, *positive(channels_first(torch.bfloat16, tokens=tokens)))


def test_the_layout_of_the_result():
    """Channels first in, channels first out: the strides are those of eager code."""
    inputs = channels_first()
    found = rewritten(sana, *inputs)
    assert found.of("linear_attention").matched
    assert found.gm(*inputs).stride() == sana(*inputs).stride()


def test_zero_rows_divide_as_in_eager():
    q, k, v = channels_first()
    q[:, :, :, 3] = -1
    for function in (lambda q, k, v: sana_with(q, k, v, 0.0), sana):
        found = rewritten(function, q, k, v)
        assert found.of("linear_attention").matched
        assert torch.equal(found.gm(q, k, v).isnan(), function(q, k, v).isnan())


# ---------------------------------------------------------------------------------------------- twins


def variant(
    act_q=F.relu, act_k=F.relu, pad=(0, 1), value=1.0, eps=1e-6, last=slice(-1, None), most=slice(0, -1)
):
    def function(q, k, v, *rest):
        out = act_q(q) @ (act_k(k).mT @ F.pad(v, pad, value=value))
        return out[..., most] / (out[..., last] + (rest[0] if rest else eps))

    return function


TWINS = {
    "elu": variant(act_q=lambda x: F.elu(x) + 1, act_k=lambda x: F.elu(x) + 1),
    "keys without relu": variant(act_k=lambda x: x),
    "queries without relu": variant(act_q=lambda x: x),
    "leaky": variant(act_q=F.leaky_relu),
    "relu6": variant(act_k=F.relu6),
    "clamped elsewhere": variant(act_q=lambda x: x.clamp_min(0.1)),
    "padded with 0": variant(value=0.0),
    "padded with 2": variant(value=2.0),
    "padded on the other side": variant(pad=(1, 0)),
    "padded twice": variant(pad=(0, 2), most=slice(0, -2)),
    "another place divided": variant(last=slice(0, 1)),
    "all but the first": variant(most=slice(1, None)),
    "sum over channels": lambda q, k, v: (
        (q.relu() @ (k.relu().mT @ v)) / (q.relu() @ k.relu()[:, :, :8].sum(-1, keepdim=True) + 1e-6)
    ),
    "weights divided by another sum": lambda q, k, v: (lambda w: (w / (w.sum(-2, keepdim=True) + 1e-6)) @ v)(
        q.relu() @ k.relu().mT
    ),
    "squared weights": lambda q, k, v: (q @ k.mT).relu() ** 2 @ v,
    "no normaliser": lambda q, k, v: q.relu() @ (k.relu().mT @ v),
    "normaliser subtracted": lambda q, k, v: (
        (q.relu() @ (k.relu().mT @ v)) / (q.relu() @ k.relu().sum(-2, keepdim=True).mT - 1e-6)
    ),
}


@pytest.mark.parametrize("function", TWINS.values(), ids=list(TWINS))
def test_twins(function):
    inputs = tokens_first()
    found = rewritten(function, *inputs)
    assert "linear_attention" not in found.matched
    assert torch.equal(found.gm(*inputs), function(*inputs)) or "sdpa" in found.matched


REFUSED = {
    "eps a tensor": (variant(), (*tokens_first(), torch.full((), 1e-6)), Reason.GUARD, "eps is a tensor"),
    "rank 3": (padded, tuple(x[0] for x in tokens_first()), Reason.GUARD, "rank 3"),
    "rank 5": (padded, tuple(x[None] for x in tokens_first()), Reason.GUARD, "rank 5"),
    "keys shared": (
        padded,
        (tokens_first()[0], *(x[:1] for x in tokens_first()[1:])),
        Reason.GUARD,
        "share batch and heads",
    ),
    "computed in float64": (
        lambda q, k, v: padded(q.double(), k.double(), v.double()).float(),
        tokens_first(),
        Reason.GUARD,
        "computed in float64",
    ),
    "the products returned": (
        lambda q, k, v: (lambda o: (o[..., :-1] / (o[..., -1:] + 1e-6), o))(
            q.relu() @ (k.relu().mT @ F.pad(v, (0, 1), value=1.0))
        ),
        tokens_first(),
        Reason.ESCAPES,
        "is returned or stored by the model",
    ),
}


@pytest.mark.parametrize(("function", "inputs", "code", "said"), REFUSED.values(), ids=list(REFUSED))
def test_refused(function, inputs, code, said):
    found = rewritten(function, *inputs)
    site = found.of("linear_attention")
    assert (site.status, site.code) == ("rejected", code)
    assert said in site.detail
    assert found.after == found.before


def test_few_tokens_are_left_to_the_weights():
    """With one to three tokens the weights hardly round: the other order of products would be less exact."""
    for tokens, matched in ((3, False), (4, True)):
        q, k, v = (torch.randn(1, 2, tokens, 8) for _ in range(3))
        site = rewritten(quadratic, q, k, v).of("linear_attention")
        assert site.matched is matched
        assert matched or site.reason.startswith("GUARD: tokens")
