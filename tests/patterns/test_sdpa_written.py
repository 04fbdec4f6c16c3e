"""Attention written out: every spelling of scores, biases and masks that must be a site."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from tests.support.graphs import assert_right, lines, rewritten

from .attention import BATCHWISE, BIAS, HEADWISE, INF, KEEP, K, Q, V, by_hand, qkv, t

pytestmark = pytest.mark.usefixtures("any_kernel")


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


def test_divided_late_before_and_after():
    def function(q, k, v):
        e = exp_of(q @ k.mT * 0.3)
        return (e @ v) / e.sum(-1, keepdim=True)

    found = rewritten(function, Q, K, V)
    assert found.of("sdpa").rule == "WrittenAttention"
    for gone in ("matmul", "exp", "amax", "sum", "div"):
        assert f" = {gone}." in found.before
        assert f" = {gone}." not in found.after


def exp_of(scores):
    return (scores - scores.amax(-1, keepdim=True)).exp()


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
    "softmax written out, in place": lambda q, k, v: (lambda e: e.div_(e.sum(-1, keepdim=True)) @ v)(
        (lambda s: s.sub_(s.amax(-1, keepdim=True)).exp_())(q @ k.mT * 0.3)
    ),
    "exp of log_softmax": lambda q, k, v: (q @ k.mT).log_softmax(-1).exp() @ v,
    "exp less logsumexp": lambda q, k, v: (lambda s: (s - torch.logsumexp(s, -1, keepdim=True)).exp() @ v)(
        q @ k.mT * 0.3
    ),
    "exp less logsumexp, unsqueezed": lambda q, k, v: (lambda s: (s - s.logsumexp(-1)[..., None]).exp() @ v)(
        q @ k.mT * 0.3
    ),
    "softmax written out, sum unsqueezed": lambda q, k, v: (lambda e: (e / e.sum(-1).unsqueeze(-1)) @ v)(
        exp_of(q @ k.mT)
    ),
    "divided after the product": lambda q, k, v: (lambda e: (e @ v) / e.sum(-1, keepdim=True))(
        exp_of(q @ k.mT * 0.3)
    ),
    "divided after the product, sum unsqueezed": lambda q, k, v: (
        lambda e: (e @ v) / e.sum(-1).unsqueeze(-1)
    )(exp_of(q @ k.mT)),
    "divided after the product, reciprocal": lambda q, k, v: (
        lambda e: e.sum(-1, keepdim=True).reciprocal() * (e @ v)
    )(exp_of(q @ k.mT)),
    "divided after the product, one over": lambda q, k, v: (
        lambda e: (e @ v) * (1 / e.sum(-1, keepdim=True))
    )(exp_of(q @ k.mT)),
    "divided after the product, in place": lambda q, k, v: (lambda e: (e @ v).div_(e.sum(-1, keepdim=True)))(
        exp_of(q @ k.mT)
    ),
    "divided after the product, einsum": lambda q, k, v: (
        lambda e: torch.einsum("bhqk,bhkd->bhqd", e, v) / e.sum(-1, keepdim=True)
    )(exp_of(q @ k.mT)),
    "divided after the product, from the left": lambda q, k, v: (
        lambda e: (v.mT @ e.mT) / e.mT.sum(-2, keepdim=True)
    )(exp_of(q @ k.mT)),
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
    "biased in rows and columns of an image": (
        lambda q, k, v, m: (
            (lambda s: s + q[..., :7].view(2, 4, 2, 3, 7, 1) + m.view(2, 3, 7, 1))(
                (q @ k.mT * 0.3).view(2, 4, 2, 3, 7, 1)
            )
            .view(2, 4, 6, 7)
            .softmax(-1)
            @ v
        ),
        BIAS,
    ),
    "biased in an image, heads and batches together": (
        lambda q, k, v, m: (
            ((q.flatten(0, 1) @ k.flatten(0, 1).mT).view(8, 2, 3, 7) + m.view(2, 3, 7))
            .view(2, 4, 6, 7)
            .softmax(-1)
            @ v
        ),
        BIAS,
    ),
    "masked in an image, then biased": (
        lambda q, k, v, m: (
            (
                (q @ k.mT).unflatten(2, (2, 3)).masked_fill(~m.view(2, 3, 7), -INF).flatten(2, 3) + q[..., :7]
            ).softmax(-1)
            @ v
        ),
        KEEP,
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
