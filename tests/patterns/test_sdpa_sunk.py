"""Attention with a sink for each head that is taken off the result, by the logarithm of the softmax's sum."""

from __future__ import annotations

import pytest
import torch

from tests.support.graphs import assert_right, rewritten

from .attention import INF, K, Q, V, qkv, t

pytestmark = pytest.mark.usefixtures("any_kernel")
SINKS = t(4, seed=9)


def gated(scores, v, sinks):
    gate = (scores.logsumexp(-1) - sinks.view(1, -1, 1)).float().sigmoid()
    return (scores.softmax(-1, dtype=torch.float32).to(v.dtype) @ v) * gate.unsqueeze(-1).to(v.dtype)


def test_sunk_before_and_after():
    found = rewritten(lambda q, k, v, s: gated(q @ k.mT * 0.3, v, s), Q, K, V, SINKS)
    assert found.of("sdpa").rule == "SunkAttention"
    for gone in ("softmax.int", "logsumexp", "sigmoid", "mul"):
        assert gone not in found.after


MASK = (torch.rand(6, 7, generator=torch.Generator().manual_seed(0)) < 0.4) | (torch.arange(6) == 2)[:, None]
ADDED = torch.zeros(6, 7).masked_fill(MASK, -INF)
FORMS = {
    "plain": lambda q, k, v, s, mask, added: gated(q @ k.mT * 0.3, v, s),
    "keepdim": lambda q, k, v, s, mask, added: (
        lambda x: (x.logsumexp(-1, keepdim=True) - s.view(1, 4, 1, 1)).sigmoid() * (x.softmax(-1) @ v)
    )(q @ k.mT),
    "causal": lambda q, k, v, s, mask, added: gated(
        (q @ k.mT).masked_fill(torch.ones(6, 7, dtype=torch.bool).triu(1), -INF), v, s
    ),
    "masked, NaN": lambda q, k, v, s, mask, added: gated((q @ k.mT).masked_fill(mask, -INF), v, s),
    "masked, zeros": lambda q, k, v, s, mask, added: gated(
        (q @ k.mT).masked_fill(mask, torch.finfo(q.dtype).min), v, s
    ),
    "biased, NaN": lambda q, k, v, s, mask, added: gated(q @ k.mT * 0.3 + added, v, s),
    "biased, zeros": lambda q, k, v, s, mask, added: gated(
        q @ k.mT * 0.3 + added.clamp(min=torch.finfo(q.dtype).min), v, s
    ),
}


@pytest.mark.parametrize("function", FORMS.values(), ids=list(FORMS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_sunk(function, dtype):
    inputs = *qkv(dtype), SINKS.to(dtype), MASK, ADDED.to(dtype)
    found = rewritten(function, *inputs)
    assert found.of("sdpa").matched, found.of("sdpa").reason
    assert "sigmoid" not in found.after
    assert torch.equal(found.gm(*inputs).isnan(), function(*inputs).isnan())
    assert_right(found, function, *inputs)


def of_other_scores(q, k, v, s):
    scores = q @ k.mT
    gate = ((scores * 2).logsumexp(-1) - s.view(1, -1, 1)).sigmoid()
    return (scores.softmax(-1) @ v) * gate.unsqueeze(-1)


def with_the_signs_exchanged(q, k, v, s):
    scores = q @ k.mT
    return (scores.softmax(-1) @ v) * (s.view(1, -1, 1) - scores.logsumexp(-1)).sigmoid().unsqueeze(-1)


def over_another_dim(q, k, v, s):
    scores = q @ k[:, :, :6].mT
    gate = (scores.logsumexp(-2) - s.view(1, -1, 1)).sigmoid()
    return (scores.softmax(-1) @ v[:, :, :6]) * gate.unsqueeze(-1)


def of_each_query(q, k, v, s):
    scores = q @ k.mT
    gate = (scores.logsumexp(-1) - q[..., 0]).sigmoid()
    return (scores.softmax(-1) @ v) * gate.unsqueeze(-1)


def along_the_width(q, k, v, s):
    scores = q @ k.mT
    gate = (scores.logsumexp(-1) - s.view(1, -1, 1)).sigmoid()
    return (scores.softmax(-1) @ v[..., :6]) * gate.unsqueeze(-2)


TWINS = [of_other_scores, with_the_signs_exchanged, over_another_dim, of_each_query, along_the_width]


@pytest.mark.parametrize("function", TWINS)
def test_twins(function):
    found = rewritten(function, Q, K, V, SINKS)
    assert not found.matched
    assert_right(found, function, Q, K, V, SINKS)
