"""Attention written out that must not be a site, and why."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fxrewrite.report import Reason
from tests.support.graphs import assert_right, rewritten

from .attention import INF, KEEP, K, Q, V, by_hand, t

pytestmark = pytest.mark.usefixtures("any_kernel")


def exp_of(scores):
    return (scores - scores.amax(-1, keepdim=True)).exp()


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
    "exp less logsumexp of another dim": (
        lambda q, k, v: (lambda s: (s - s.logsumexp(-2, keepdim=True)).exp() @ v)(q @ k.mT),
        None,
        "",
    ),
    "exp less logsumexp of other scores": (
        lambda q, k, v: (lambda s: (s - (s * 2).logsumexp(-1, keepdim=True)).exp() @ v)(q @ k.mT),
        None,
        "",
    ),
    "exp less twice logsumexp": (
        lambda q, k, v: (lambda s: s.sub(s.logsumexp(-1, keepdim=True), alpha=2).exp() @ v)(q @ k.mT),
        None,
        "",
    ),
    "exp less logsumexp, the wrong way round": (
        lambda q, k, v: (lambda s: (s.logsumexp(-1, keepdim=True) - s).exp() @ v)(q @ k.mT),
        None,
        "",
    ),
    "divided late by the sum over queries": (
        lambda q, k, v: (lambda e: (e @ v[:, :, :6, :6]) / e.sum(-2, keepdim=True))(
            exp_of(q @ k[:, :, :6].mT)
        ),
        None,
        "",
    ),
    "divided late by a sum beside its rows": (
        lambda q, k, v: (lambda e: (e @ v[:, :, :6, :6]) / e.sum(-1).unsqueeze(-2))(
            exp_of(q @ k[:, :, :6].mT)
        ),
        None,
        "",
    ),
    "divided late by a sum and more": (
        lambda q, k, v: (lambda e: (e @ v) / (e.sum(-1, keepdim=True) + 1e-3))(exp_of(q @ k.mT)),
        None,
        "",
    ),
    "divided late by another sum": (
        lambda q, k, v: (lambda s: (exp_of(s) @ v) / exp_of(s * 2).sum(-1, keepdim=True))(q @ k.mT),
        None,
        "",
    ),
    "divided late without the maximum": (
        lambda q, k, v: (lambda e: (e @ v) / e.sum(-1, keepdim=True))((q @ k.mT).exp()),
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
    "einsum over the queries": (
        lambda q, k, v: torch.einsum("bnij,bnid->bjnd", (q @ k.mT).softmax(-1), v[:, :, :6]),
        S,
        "expected",
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
    "joined in another order": (
        lambda q, k, v: (q @ k.mT).view(2, 4, 2, 3, 7).transpose(2, 3).reshape(2, 4, 6, 7).softmax(-1) @ v,
        S,
        "found view",
    ),
    "softmax over other rows and columns": (
        lambda q, k, v: (q @ k.mT).view(2, 4, 7, 6).softmax(-1).view(2, 4, 6, 7) @ v,
        S,
        "expected softmax, found view",
    ),
    "split and not joined": (
        lambda q, k, v: (q @ k.mT).view(2, 4, 7, 6).softmax(-1) @ v[..., :6, :],
        G,
        "scores that are split are joined again",
    ),
    "split, scaled and biased in one call": (
        lambda q, k, v: (
            torch.add(q[..., :7].view(2, 4, 2, 3, 7), (q @ k.mT).view(2, 4, 2, 3, 7), alpha=0.3)
            .view(2, 4, 6, 7)
            .softmax(-1)
            @ v
        ),
        G,
        "scores that are split are scaled and masked in one call",
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
