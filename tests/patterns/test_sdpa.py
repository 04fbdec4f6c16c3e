"""Softmax attention: every spelling that must be a site, and every twin that must not."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from fxrewrite.report import Reason
from tests.support.graphs import assert_right, lines, rewritten

pytestmark = pytest.mark.usefixtures("any_kernel")
INF = float("inf")


def t(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 * seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def qkv(dtype=torch.float32, batch=(2, 4), queries=6, keys=7, width=8):
    return (
        t(*batch, queries, width, seed=1, dtype=dtype),
        t(*batch, keys, width, seed=2, dtype=dtype),
        t(*batch, keys, width, seed=3, dtype=dtype),
    )


Q, K, V = qkv()
KEEP = (torch.rand(6, 7, generator=torch.Generator().manual_seed(0)) < 0.7) | torch.eye(6, 7).bool()
BIAS = t(6, 7, seed=4)
HEADWISE = t(1, 4, 6, 7, seed=5)
BATCHWISE = t(2, 1, 1, 7, seed=6)


def test_written_before_and_after():
    found = rewritten(lambda q, k, v: (q @ k.transpose(-2, -1) / 8).softmax(-1) @ v, Q, K, V)
    assert found.before == lines("""
        transpose = transpose.int(k_1, -2, -1)
        matmul = matmul.default(q_1, transpose)
        div = div.Tensor(matmul, 8)
        softmax = softmax.int(div, -1)
        matmul_1 = matmul.default(softmax, v_1)
        return matmul_1
    """)
    head, tail = found.after.split("fxrewrite.sdpa.default(q_1, k_1, v_1, None, ")
    assert head == "sdpa_default = "
    assert "scale=0.125" in tail
    assert "safe_softmax=False" in tail
    assert tail.endswith("return sdpa_default")
    assert found.of("sdpa").rule == "WrittenAttention"


def test_fused_before_and_after():
    function = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.25)  # noqa: E731
    found = rewritten(function, Q, K, V)
    assert found.before.count(" = scaled_dot_product_attention.default(") == 1
    assert found.after.startswith("sdpa_default = fxrewrite.sdpa.default(q_1, k_1, v_1, None, ")
    assert found.after.endswith("\nreturn sdpa_default")
    assert found.after.count("\n") == 1
    assert "scale=0.25" in found.after
    assert found.of("sdpa").rule == "FusedAttention"


# ------------------------------------------------------------------------------------------ spellings


def by_hand(scores, most):
    e = (scores - most(scores)).exp()
    return e / e.sum(-1, keepdim=True)


WRITTEN = {
    "no scale": lambda q, k, v: (q @ k.mT).softmax(-1) @ v,
    "scale, mul": lambda q, k, v: (q @ k.mT * 0.3).softmax(-1) @ v,
    "scale, number first": lambda q, k, v: (0.3 * (q @ k.mT)).softmax(-1) @ v,
    "scale, div": lambda q, k, v: (q @ k.mT / math.sqrt(8)).softmax(-1) @ v,
    "scale, on the query": lambda q, k, v: ((q * 0.3) @ k.mT).softmax(-1) @ v,
    "scale, on both": lambda q, k, v: ((q * 0.5) @ (k * 0.5).mT).softmax(-1) @ v,
    "scale, twice": lambda q, k, v: (q @ k.mT * 0.5 / 2).softmax(-1) @ v,
    "scale, negative": lambda q, k, v: (q @ k.mT * -0.3).softmax(-1) @ v,
    "scale, zero": lambda q, k, v: (q @ k.mT * 0).softmax(-1) @ v,
    "scale, a truth": lambda q, k, v: (q @ k.mT * True).softmax(-1) @ v,
    "scale in place": lambda q, k, v: (q @ k.mT).mul_(0.3).softmax(-1) @ v,
    "torch functions": lambda q, k, v: torch.matmul(
        F.softmax(torch.div(torch.matmul(q, k.transpose(2, 3)), 4), dim=-1), v
    ),
    "dim from the left": lambda q, k, v: (q @ k.mT).softmax(3) @ v,
    "a number added": lambda q, k, v: (q @ k.mT + 3).softmax(-1) @ v,
    # keys
    "keys, permute": lambda q, k, v: (q @ k.permute(0, 1, 3, 2)).softmax(-1) @ v,
    "keys, swapaxes": lambda q, k, v: (q @ k.swapaxes(-1, -2)).softmax(-1) @ v,
    "keys, movedim": lambda q, k, v: (q @ k.movedim(-1, -2)).softmax(-1) @ v,
    "keys, contiguous": lambda q, k, v: (q @ k.mT.contiguous()).softmax(-1) @ v,
    "scores from the keys' side": lambda q, k, v: (k @ q.mT).mT.softmax(-1) @ v,
    "scores from the keys' side, other dim": lambda q, k, v: (k @ q.mT).softmax(-2).mT @ v,
    "einsum": lambda q, k, v: torch.einsum(
        "bhij,bhjd->bhid", torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1), v
    ),
    "values from the left": lambda q, k, v: (v.mT @ (k @ q.mT).softmax(-2)).mT,
    "values from the left, channels first": lambda q, k, v: v.mT @ (q @ k.mT).softmax(-1).mT,
    "einsum, heads after tokens": lambda q, k, v: torch.einsum(
        "bhij,bhjd->bihd", torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1), v
    ),
    "softmax written out": lambda q, k, v: by_hand(q @ k.mT * 0.3, lambda s: s.amax(-1, keepdim=True)) @ v,
    "softmax written out, max": lambda q, k, v: (
        by_hand(q @ k.mT, lambda s: s.max(dim=-1, keepdim=True)[0]) @ v
    ),
    "einsum, scores only": lambda q, k, v: torch.einsum("bhqd,bhkd->bhqk", q, k).softmax(-1) @ v,
    "capped": lambda q, k, v: (5 * torch.tanh(q @ k.mT / 5)).softmax(-1) @ v,
    "capped after a scale": lambda q, k, v: ((q @ k.mT * 0.3 / 2).tanh() * 2).softmax(-1) @ v,
    "squashed": lambda q, k, v: (q @ k.mT).tanh().softmax(-1) @ v,
    "less the maximum, detached": lambda q, k, v: (
        lambda s: (s - s.amax(-1, keepdim=True).detach()).softmax(-1) @ v
    )(q @ k.mT),
    "masked by a tensor made like the scores": lambda q, k, v: (
        lambda s: s.masked_fill(s.new_ones(6, 7, dtype=torch.bool).triu(2), -INF).softmax(-1) @ v
    )(q @ k.mT),
    "less the maximum": lambda q, k, v: (lambda s: (s - s.amax(-1, keepdim=True)).softmax(-1) @ v)(q @ k.mT),
    # masks
    "weights in float32": lambda q, k, v: F.softmax(q @ k.mT, -1, dtype=torch.float32).to(q.dtype) @ v,
    "weights in float32, by casts": lambda q, k, v: (q @ k.mT).float().softmax(-1).type_as(q) @ v,
    "switched-off dropout": lambda q, k, v: F.dropout((q @ k.mT).softmax(-1), 0.1, training=False) @ v,
}
MASKED = {
    "added": (lambda q, k, v, m: (q @ k.mT * 0.3 + m).softmax(-1) @ v, BIAS),
    "added on the left": (lambda q, k, v, m: (m + q @ k.mT * 0.3).softmax(-1) @ v, BIAS),
    "added in place": (lambda q, k, v, m: (q @ k.mT).add_(m).softmax(-1) @ v, BIAS),
    "added before the scale": (lambda q, k, v, m: ((q @ k.mT + m) * 0.3).softmax(-1) @ v, BIAS),
    "added, a head each": (lambda q, k, v, m: (q @ k.mT + m).softmax(-1) @ v, HEADWISE),
    "added, a batch each": (lambda q, k, v, m: (q @ k.mT + m).softmax(-1) @ v, BATCHWISE),
    "added twice": (lambda q, k, v, m: (q @ k.mT + m + m.mT.mT * 2).softmax(-1) @ v, HEADWISE),
    "added, sliced": (lambda q, k, v, m: (q @ k.mT + m[:, :, :, :7]).softmax(-1) @ v, t(2, 1, 6, 9)),
    "filled with -inf": (lambda q, k, v, m: (q @ k.mT).masked_fill(~m, -INF).softmax(-1) @ v, KEEP),
    "filled with a number": (lambda q, k, v, m: (q @ k.mT).masked_fill(m, -1e9).softmax(-1) @ v, ~KEEP),
    "filled in place": (lambda q, k, v, m: (q @ k.mT).masked_fill_(m, -1e9).softmax(-1) @ v, ~KEEP),
    "filled, then scaled": (
        lambda q, k, v, m: (q @ k.mT).masked_fill(m, -9.0).mul(0.3).softmax(-1) @ v,
        ~KEEP,
    ),
    "filled, small number": (lambda q, k, v, m: (q @ k.mT).masked_fill(m, -2.0).softmax(-1) @ v, ~KEEP),
    "filled after a number was added": (
        lambda q, k, v, m: (q @ k.mT + 3).masked_fill(m, -2.0).softmax(-1) @ v,
        ~KEEP,
    ),
    "filled before a number is added": (
        lambda q, k, v, m: ((q @ k.mT).masked_fill(m, -2.0) + 3).softmax(-1) @ v,
        ~KEEP,
    ),
    "where kept": (lambda q, k, v, m: torch.where(m, q @ k.mT * 0.3, -1e9).softmax(-1) @ v, KEEP),
    "where dropped": (lambda q, k, v, m: torch.where(m, -INF, q @ k.mT).softmax(-1) @ v, ~KEEP),
    "where, filled tensor": (
        lambda q, k, v, m: torch.where(m, q @ k.mT, torch.full([], -1e9, dtype=q.dtype)).softmax(-1) @ v,
        KEEP,
    ),
    "added, a truth": (lambda q, k, v, m: (q @ k.mT + m).softmax(-1) @ v, KEEP),
    "added, integers": (lambda q, k, v, m: (q @ k.mT + m.int() * 3).softmax(-1) @ v, KEEP),
    "subtracted": (lambda q, k, v, m: (q @ k.mT - m).softmax(-1) @ v, BIAS),
    "subtracted, then scaled": (lambda q, k, v, m: ((q @ k.mT - m) * 0.3).softmax(-1) @ v, HEADWISE),
    "scaled by a tensor of one number": (
        lambda q, k, v, m: (q @ k.mT * m).softmax(-1) @ v,
        torch.tensor(0.3),
    ),
    "divided by a tensor of one number": (
        lambda q, k, v, m: (q @ k.mT / m).softmax(-1) @ v,
        torch.tensor([3.0]),
    ),
    "scaled by a number a head": (lambda q, k, v, m: (q @ k.mT * m).softmax(-1) @ v, t(4, 1, 1)),
    "scaled by a number a head, then biased": (
        lambda q, k, v, m: (q @ k.mT * m.exp() + m.new_ones(6, 7).triu() * 2).softmax(-1) @ v,
        t(4, 1, 1),
    ),
    "biased, then filled": (
        lambda q, k, v, m: (q @ k.mT + q[..., :7]).masked_fill(~m, -INF).softmax(-1) @ v,
        KEEP,
    ),
    "filled, then biased": (
        lambda q, k, v, m: ((q @ k.mT).masked_fill(~m, -3e38) * 0.5 + q[..., :7]).softmax(-1) @ v,
        KEEP,
    ),
    "filled twice": (
        lambda q, k, v, m: (q @ k.mT).masked_fill(~m, -INF).masked_fill(~m.roll(1, 1), -INF).softmax(-1) @ v,
        KEEP | KEEP.roll(1, 1),
    ),
    "capped, then masked": (
        lambda q, k, v, m: ((q @ k.mT / 5).tanh() * 5 + m).softmax(-1) @ v,
        HEADWISE,
    ),
    "capped, masked, scaled": (
        lambda q, k, v, m: (((q @ k.mT / 5).tanh() + m) * 3).softmax(-1) @ v,
        HEADWISE,
    ),
    "a sink for each head": (
        lambda q, k, v, m: (
            torch.cat([q @ k.mT, m.view(1, -1, 1, 1).expand(2, -1, 6, -1)], -1).softmax(-1)[..., :-1] @ v
        ),
        t(4, seed=7),
    ),
    "a sink for each head, less the maximum": (
        lambda q, k, v, m: (lambda s: (s - s.max(dim=-1, keepdim=True).values).softmax(-1)[..., :-1] @ v)(
            torch.cat([q @ k.mT * 0.3, m.reshape(1, -1, 1, 1).expand(2, -1, 6, -1)], dim=-1)
        ),
        t(4, seed=7),
    ),
    "where, finfo": (
        lambda q, k, v, m: torch.where(m, q @ k.mT, torch.finfo(q.dtype).min).softmax(-1) @ v,
        KEEP,
    ),
}


@pytest.mark.parametrize("function", WRITTEN.values(), ids=list(WRITTEN))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_written(function, dtype):
    inputs = qkv(dtype)
    found = rewritten(function, *inputs)
    assert found.of("sdpa").matched, found.of("sdpa").reason
    assert "softmax" not in found.after.replace("safe_softmax", "")
    assert_right(found, function, *inputs)


@pytest.mark.parametrize(("function", "mask"), MASKED.values(), ids=list(MASKED))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_masked(function, mask, dtype):
    inputs = *qkv(dtype), mask.to(dtype) if mask.is_floating_point() else mask
    found = rewritten(function, *inputs)
    assert found.of("sdpa").matched, found.of("sdpa").reason
    assert_right(found, function, *inputs)


def heads_merged(q, k, v, m):
    scores = torch.bmm(q.reshape(8, 6, 8), k.reshape(8, 7, 8).transpose(1, 2)) * 0.3
    scores = (scores.view(2, 4, 6, 7) + m).view(8, 6, 7)
    return torch.bmm(scores.softmax(-1), v.reshape(8, 7, 8)).view(2, 4, 6, 8)


def heads_merged_after_the_mask(q, k, v, m):
    scores = (q @ k.mT + m).view(8, 6, 7).softmax(-1)
    return (scores.view(2, 4, 6, 7)) @ v


SHAPES = {
    "rank 2": (lambda q, k, v: (q @ k.mT).softmax(-1) @ v, qkv(batch=())),
    "rank 3": (lambda q, k, v: torch.bmm((torch.bmm(q, k.mT) * 0.3).softmax(2), v), qkv(batch=(5,))),
    "baddbmm": (
        lambda q, k, v, m: torch.bmm(torch.baddbmm(m, q, k.mT, beta=1, alpha=0.3).softmax(-1), v),
        (*qkv(batch=(5,)), t(1, 6, 7)),
    ),
    "baddbmm of nothing": (
        lambda q, k, v, m: torch.bmm(torch.baddbmm(m, q, k.mT, beta=0, alpha=0.3).softmax(-1), v),
        (*qkv(batch=(5,)), t(5, 6, 7)),
    ),
    "baddbmm, mask scaled": (
        lambda q, k, v, m: torch.bmm(torch.baddbmm(m, q, k.mT, beta=1).mul(0.5).softmax(-1), v),
        (*qkv(batch=(5,)), t(5, 6, 7)),
    ),
    "heads merged for the scores": (
        lambda q, k, v: (q.flatten(0, 1) @ k.flatten(0, 1).mT).view(2, 4, 6, 7).softmax(-1) @ v,
        (Q, K, V),
    ),
    "heads merged for the values": (
        lambda q, k, v: (q @ k.mT).flatten(0, 1).softmax(-1) @ v.flatten(0, 1),
        (Q, K, V),
    ),
    "heads merged, mask of rank 4": (heads_merged, (Q, K, V, t(2, 1, 6, 7))),
    "heads merged, mask of rank 2": (heads_merged, (Q, K, V, BIAS)),
    "heads merged after the mask": (heads_merged_after_the_mask, (Q, K, V, HEADWISE)),
    "values of another width": (lambda q, k, v: (q @ k.mT).softmax(-1) @ v, (Q, K, t(2, 4, 7, 5))),
    "one query": (lambda q, k, v: (q @ k.mT).softmax(-1) @ v, (t(2, 4, 1, 8), K, V)),
    "one key": (lambda q, k, v: (q @ k.mT).softmax(-1) @ v, (Q, t(2, 4, 1, 8), t(2, 4, 1, 8))),
    "one head": (lambda q, k, v: (q @ k.mT).softmax(-1) @ v, qkv(batch=(2, 1))),
    "tokens before heads": (
        lambda q, k, v: (q.transpose(1, 2) @ k.permute(0, 2, 3, 1)).softmax(-1) @ v.transpose(1, 2),
        tuple(x.transpose(1, 2).contiguous() for x in (Q, K, V)),
    ),
    "a dim of 1 squeezed": (
        lambda q, k, v: (q.squeeze(1) @ k.squeeze(1).mT).softmax(-1) @ v.squeeze(1),
        qkv(batch=(2, 1)),
    ),
    "grouped heads": (
        lambda q, k, v: (q @ k.repeat_interleave(2, 1).mT).softmax(-1) @ v.repeat_interleave(2, 1),
        (Q, t(2, 2, 7, 8, seed=8), t(2, 2, 7, 8, seed=9)),
    ),
    "grouped heads, expanded": (
        lambda q, k, v: (
            (q @ k[:, :, None].expand(2, 2, 2, 7, 8).reshape(2, 4, 7, 8).mT).softmax(-1)
            @ v[:, :, None].expand(2, 2, 2, 7, 8).reshape(2, 4, 7, 8)
        ),
        (Q, t(2, 2, 7, 8, seed=8), t(2, 2, 7, 8, seed=9)),
    ),
    "grouped heads, merged after": (
        lambda q, k, v, m: (
            ((q @ k.repeat_interleave(2, 1).mT).view(8, 6, 7) + m).view(2, 4, 6, 7).softmax(-1)
            @ v.repeat_interleave(2, 1)
        ),
        (Q, t(2, 2, 7, 8, seed=8), t(2, 2, 7, 8, seed=9), t(8, 6, 7)),
    ),
    "one head of keys and values": (
        lambda q, k, v, m: (q @ k.mT + m).softmax(-1) @ v,
        (Q, K[:, :1], V[:, :1], HEADWISE),
    ),
    "groups in a dim of their own, masked": (
        lambda q, k, v, m: (q @ k[:, :, None].mT + m[:, None]).softmax(-1) @ v[:, :, None],
        (t(2, 2, 2, 6, 8), t(2, 2, 7, 8, seed=8), t(2, 2, 7, 8, seed=9), BATCHWISE.expand(2, 1, 6, 7)),
    ),
    "groups in a dim of their own, masked with the heads merged": (
        lambda q, k, v, m: (
            ((q @ k[:, :, None].mT).flatten(1, 2) + m).unflatten(1, (2, 2)).softmax(-1) @ v[:, :, None]
        ),
        (t(2, 2, 2, 6, 8), t(2, 2, 7, 8, seed=8), t(2, 2, 7, 8, seed=9), HEADWISE),
    ),
    "rank 5": (lambda q, k, v: (q @ k.mT).softmax(-1) @ v, qkv(batch=(2, 1, 3))),
    "rank 5, masked alike": (
        lambda q, k, v, m: (q @ k.mT + m).softmax(-1) @ v,
        (*qkv(batch=(2, 1, 3)), BIAS),
    ),
}


@pytest.mark.parametrize(("function", "inputs"), SHAPES.values(), ids=list(SHAPES))
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "symbolic"])
def test_shapes(function, inputs, dynamic, request):
    name = request.node.callspec.id.partition("-")[2]
    found = rewritten(function, *inputs, dynamic=dynamic)
    if name.startswith("grouped heads, merged") and not dynamic:
        assert "grouped heads in another shape" in found.of("sdpa").reason
    elif not (dynamic and ("merged" in name or "expanded" in name or "groups" in name)):  # written as numbers
        assert found.of("sdpa").matched, found.of("sdpa").reason
    assert_right(found, function, *inputs)


WINDOWS = {
    "the last three": lambda i, j: (j <= i) & (j > i - 3),
    "three on either side": lambda i, j: (i - j < 3) & (j - i < 3),
}


@pytest.mark.parametrize("form", WINDOWS.values(), ids=list(WINDOWS))
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "symbolic"])
def test_windows(form, dynamic):
    def masked(q):
        return form(torch.arange(q.shape[-2])[:, None], torch.arange(q.shape[-2]))

    def fused(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, masked(q))

    def written(q, k, v):
        return torch.where(masked(q), q @ k.mT, -INF).softmax(-1) @ v

    inputs = qkv(queries=9, keys=9)
    for function in (fused, written):
        found = rewritten(function, *inputs, dynamic=dynamic)
        assert "window=3" in found.after
        assert_right(found, function, *inputs)


FUSED = {
    "plain": (F.scaled_dot_product_attention, (Q, K, V)),
    "bfloat16": (F.scaled_dot_product_attention, qkv(torch.bfloat16)),
    "rank 3": (F.scaled_dot_product_attention, qkv(batch=(5,))),
    "causal": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), (Q, K, V)),
    "scale": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.7), (Q, K, V)),
    "mask, boolean": (F.scaled_dot_product_attention, (Q, K, V, KEEP)),
    "mask, a whole row": (
        F.scaled_dot_product_attention,
        (Q, K, V, KEEP & (torch.arange(6) != 2)[:, None]),
    ),
    "mask, added": (F.scaled_dot_product_attention, (Q, K, V, HEADWISE)),
    "mask, rank 3": (F.scaled_dot_product_attention, (*qkv(batch=(5,)), t(5, 6, 7))),
    "keywords": (
        lambda q, k, v, m: F.scaled_dot_product_attention(query=q, key=k, attn_mask=m, value=v),
        (Q, K, V, KEEP),
    ),
    "grouped": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        (Q, t(2, 2, 7, 8, seed=8), t(2, 2, 7, 8, seed=9)),
    ),
    "repeated heads": (
        lambda q, k, v: F.scaled_dot_product_attention(
            q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        ),
        (Q, t(2, 2, 7, 8, seed=8), t(2, 2, 7, 8, seed=9)),
    ),
    "repeated heads, rank 3": (
        lambda q, k, v: F.scaled_dot_product_attention(
            q, k.repeat_interleave(2, 0), v.repeat_interleave(2, 0)
        ),
        (Q[0], t(2, 7, 8, seed=8), t(2, 7, 8, seed=9)),
    ),
    "turned and back": (
        lambda q, k, v: F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        ).transpose(1, 2),
        tuple(x.transpose(1, 2).contiguous() for x in (Q, K, V)),
    ),
    "values of another width": (F.scaled_dot_product_attention, (Q, K, t(2, 4, 7, 5))),
    "rank 2": (F.scaled_dot_product_attention, qkv(batch=())),
    "rank 5": (F.scaled_dot_product_attention, qkv(batch=(2, 1, 3))),
    "rank 5, masked": (F.scaled_dot_product_attention, (*qkv(batch=(2, 1, 3)), BIAS[None, None, None])),
    "one head of keys and values": (F.scaled_dot_product_attention, (Q, K[:, :1], V[:, :1])),
    "tokens before the batch": (
        F.scaled_dot_product_attention,
        tuple(x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3) for x in (Q, K, V)),
    ),
}


@pytest.mark.parametrize(("function", "inputs"), FUSED.values(), ids=list(FUSED))
def test_fused(function, inputs):
    found = rewritten(function, *inputs)
    assert found.of("sdpa").matched, found.of("sdpa").reason
    assert "scaled_dot_product_attention" not in found.after
    assert_right(found, function, *inputs)


# ---------------------------------------------------------------------------------------------- twins

S, G, M, E = Reason.STRUCTURE, Reason.GUARD, Reason.METADATA, Reason.ESCAPES
TWINS = {
    "softmax over queries": (lambda q, k, v: (q @ k.mT).softmax(-2) @ v, S, "softmax with {'dim'"),
    "softmax over heads": (lambda q, k, v: (q @ k.mT).softmax(1) @ v, S, "softmax with {'dim': -1}"),
    "exp without the maximum": (
        lambda q, k, v: (lambda e: (e / e.sum(-1, keepdim=True)) @ v)((q @ k.mT).exp()),
        None,
        "",
    ),
    "maximum of another dim": (
        lambda q, k, v: by_hand(q @ k.mT, lambda s: s.amax(-2, keepdim=True)) @ v,
        None,
        "",
    ),
    "log_softmax": (lambda q, k, v: (q @ k.mT).log_softmax(-1) @ v, None, ""),
    "keys not transposed": (
        lambda q, k, v: (q @ k[..., :6, :8].mT[..., :6]).softmax(-1) @ v[..., :6, :],
        None,
        "",
    ),
    "a scale for each row": (
        lambda q, k, v, s: (q @ k.mT * s[:1, 0, 0].expand(6, 1)).softmax(-1) @ v,
        G,
        "the scale is a tensor of shape [1, 1, 6, 1], not one number a head",
    ),
    "masked scores scaled by a tensor": (
        lambda q, k, v, s: ((q @ k.mT + q[..., :7]) * s).softmax(-1) @ v,
        G,
        "a tensor scales scores that are already masked",
    ),
    "scores in float32 scaled by a tensor": (
        lambda q, k, v, s: (
            ((q.bfloat16() @ k.bfloat16().mT).float() * s).softmax(-1).bfloat16() @ v.bfloat16()
        ),
        G,
        "a tensor scales scores of torch.float32, the query is torch.bfloat16",
    ),
    "probabilities changed": (lambda q, k, v: ((q @ k.mT).softmax(-1) * 2) @ v, S, "found mul"),
    "probabilities returned": (
        lambda q, k, v: (lambda p: (p @ v, p))((q @ k.mT).softmax(-1)),
        E,
        "is returned",
    ),
    "scores used twice": (
        lambda q, k, v: (lambda s: (s.softmax(-1) @ v, s.amax()))(q @ k.mT),
        E,
        "also used by",
    ),
    "active dropout": (lambda q, k, v: F.dropout((q @ k.mT).softmax(-1), 0.5, True) @ v, S, "dropout"),
    "capped after a mask": (
        lambda q, k, v, m: (5 * torch.tanh((q @ k.mT + q[..., :7]) / 5)).softmax(-1) @ v,
        G,
        "capped after they are masked",
    ),
    "capped at a negative number": (
        lambda q, k, v: (-5 * torch.tanh(q @ k.mT / 5)).softmax(-1) @ v,
        G,
        "scores are capped at -5.0",
    ),
    "clamped": (lambda q, k, v: (q @ k.mT).clamp(-5, 5).softmax(-1) @ v, S, "found clamp"),
    "a sink for each row": (
        lambda q, k, v: torch.cat([q @ k.mT, q[..., :1]], -1).softmax(-1)[..., :-1] @ v,
        G,
        "sinks of shape [2, 4, 6, 1]",
    ),
    "a sink kept": (
        lambda q, k, v: torch.cat([q @ k.mT, q[..., :1]], -1).softmax(-1)[..., 1:] @ v,
        S,
        "found",
    ),
    "less another maximum": (
        lambda q, k, v: (lambda s: (s - s.amax(-2, keepdim=True)).softmax(-1) @ v)(q @ k.mT),
        E,
        "also used by",
    ),
    "bias of a masked score": (
        lambda q, k, v, m: ((q @ k.mT).masked_fill(~m, -9.0) + q[..., :7]).softmax(-1) @ v,
        G,
        "masked more than once, and a score could outweigh -9.0",
    ),
    "masked twice, with different numbers": (
        lambda q, k, v, m: (q @ k.mT).masked_fill(m, -INF).masked_fill(~m, -3e38).softmax(-1) @ v,
        G,
        "masked with different values",
    ),
    "masked twice": (
        lambda q, k, v, m: (q @ k.mT).masked_fill(m, -9.0).masked_fill(~m, -1.0).softmax(-1) @ v,
        G,
        "masked more than once",
    ),
    "replaced by a tensor": (
        lambda q, k, v, m: torch.where(m, q @ k.mT, torch.zeros(6, 7).to(q)).softmax(-1) @ v,
        G,
        "replaced by a tensor",
    ),
    "infinity added": (lambda q, k, v: (q @ k.mT + -INF).softmax(-1) @ v, G, "-inf is added"),
    "NaN where masked": (
        lambda q, k, v, m: (q @ k.mT).masked_fill(m, float("nan")).softmax(-1) @ v,
        G,
        "become NaN",
    ),
    "values of another dtype": (
        lambda q, k, v: (q.double() @ k.double().mT).softmax(-1).to(v.dtype) @ v,
        G,
        "computed in float64",
    ),
    "output of another dtype": (
        lambda q, k, v: (q.bfloat16() @ k.bfloat16().mT).to(v.dtype).softmax(-1) @ v,
        G,
        "mixed dtypes",
    ),
}


@pytest.mark.parametrize(("function", "code", "said"), TWINS.values(), ids=list(TWINS))
def test_twins(function, code, said):
    count = function.__code__.co_argcount
    extra = {4: (t(4, 1, 1) if "s" in function.__code__.co_varnames[:4] else KEEP,)}.get(count, ())
    inputs = (Q, K, V, *extra)
    found = rewritten(function, *inputs)
    sites = [s for s in found.sites if s.kind == "sdpa"]
    if code is not None:
        (site,) = sites
        assert (site.status, site.code) == ("rejected", code)
        assert said in site.detail
        assert found.after == found.before
    else:
        assert_right(found, function, *inputs)


FUSED_TWINS = {
    "active dropout": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.1),
        (Q, K, V),
        "dropout is active, p = 0.1",
    ),
    "rank 5, a mask for each batch": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, q[..., :7]),
        qkv(batch=(2, 1, 3)),
        "mask of shape (2, 1, 3, 6, 7)",
    ),
    "keys broadcast": (
        F.scaled_dot_product_attention,
        (Q, K[:1], V[:1]),
        "query and key share batch and heads",
    ),
    "values broadcast": (F.scaled_dot_product_attention, (Q, K, V[:, :1]), "key and value share"),
}


@pytest.mark.parametrize(("function", "inputs", "said"), FUSED_TWINS.values(), ids=list(FUSED_TWINS))
def test_fused_twins(function, inputs, said):
    found = rewritten(function, *inputs)
    site = found.of("sdpa")
    assert (site.status, site.code) == ("rejected", Reason.GUARD)
    assert said in site.detail
    assert found.after == found.before


def test_written_operands_of_several_ranks():
    """A query shared by all batches: the op has no broadcasting of its own."""
    function = lambda q, k, v: (q @ k.mT).softmax(-1) @ v  # noqa: E731
    found = rewritten(function, Q[0], K, V)
    assert found.of("sdpa").code is Reason.GUARD
    assert "query and key share batch and heads" in found.of("sdpa").detail


def test_safe_softmax_is_none():
    function = lambda q, k, v, m: torch.ops.aten._safe_softmax((q @ k.mT).masked_fill(m, -INF), -1) @ v  # noqa: E731
    everything = torch.ones(6, 7, dtype=torch.bool)
    found = rewritten(function, Q, K, V, everything)
    assert not found.matched
    assert torch.equal(found.gm(Q, K, V, everything), torch.zeros(2, 4, 6, 8))


# --------------------------------------------------------------------------- wholly masked rows, NaN


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("causal", [False, True], ids=["masked", "causal"])
def test_decomposed_by_torch(dtype, causal):
    """The fused call as ``run_decompositions`` leaves it, wholly masked rows included."""
    inputs = qkv(dtype, queries=7)
    keep = torch.ones(7, 7, dtype=torch.bool).tril() & (torch.arange(7) != 2)[:, None]

    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            mask = None if causal else keep
            return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)

    with torch.no_grad():
        program = torch.export.export(Model(), inputs).run_decompositions()
        found = rewritten(program.module(), *inputs)
    assert found.of("sdpa").matched, found.of("sdpa").reason
    assert "safe_softmax=True" in found.after
    assert_right(found, lambda q, k, v: Model()(q, k, v), *inputs)


@pytest.mark.parametrize("fill", [-INF, -1e9, "min"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_wholly_masked_rows(fill, dtype):
    value = torch.finfo(dtype).min if fill == "min" else fill
    if fill == -1e9 and dtype is torch.float16:
        pytest.skip("out of range")
    function = lambda q, k, v, m: (q @ k.mT).masked_fill(m, value).softmax(-1) @ v  # noqa: E731
    mask = torch.arange(6)[:, None].expand(6, 7) < 3
    inputs = *qkv(dtype), mask
    found = rewritten(function, *inputs)
    assert found.matched == ["sdpa"]
    assert torch.equal(found.gm(*inputs).isnan(), function(*inputs).isnan())
    assert_right(found, function, *inputs)


def test_a_fill_that_its_dtype_makes_infinite():
    function = lambda q, k, v, m: (  # noqa: E731
        torch.where(m, q @ k.mT, torch.full([], -1e9, dtype=torch.float16)).softmax(-1) @ v
    )
    nothing = torch.zeros(6, 7, dtype=torch.bool)
    found = rewritten(function, Q, K, V, nothing)
    assert found.matched == ["sdpa"]
    assert found.gm(Q, K, V, nothing).isnan().all()
    assert function(Q, K, V, nothing).isnan().all()


def test_biases_are_combined_in_the_dtype_of_the_scores():
    """Two bfloat16 biases on float32 scores: their sum is not rounded to bfloat16."""
    function = lambda q, k, v, a, b: (q @ k.mT + a + b).softmax(-1) @ v  # noqa: E731
    inputs = Q, K, V, (BIAS * 3).bfloat16(), (HEADWISE * 0.01).bfloat16()
    found = rewritten(function, *inputs)
    assert found.matched == ["sdpa"]
    assert_right(found, function, *inputs)


def test_masks_in_two_shapes_of_the_scores():
    def function(q, k, v, m, n):
        scores = (q @ k.mT + m).view(4, 2, 6, 7) + n
        return scores.view(2, 4, 6, 7).softmax(-1) @ v

    inputs = Q, K, V, t(2, 1, 6, 7), t(4, 1, 6, 7)
    found = rewritten(function, *inputs)
    assert_right(found, function, *inputs)
    assert not found.matched
