"""Attention in every shape of heads, and windows, of sizes known and symbolic."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.support.graphs import assert_right, rewritten

from .attention import BATCHWISE, BIAS, HEADWISE, INF, K, Q, V, qkv, t

pytestmark = pytest.mark.usefixtures("any_kernel")


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
    "rank 5, masked head by head": (
        lambda q, k, v, m: (q @ k.mT + m[:, None]).masked_fill(m[0] > 1, -INF).softmax(-1) @ v,
        (*qkv(batch=(2, 3, 4)), HEADWISE),
    ),
    "rank 5, masked block by block": (
        lambda q, k, v, m: (q @ k.mT + m[None, :, None]).softmax(-1) @ v,
        (*qkv(batch=(1, 2, 1)), t(2, 6, 7)),
    ),
    "einsum, tokens before the batch": (
        lambda q, k, v: torch.einsum("bnij,jbnd->ibnd", torch.einsum("ibnd,jbnd->bnij", q, k).softmax(3), v),
        tuple(x.permute(2, 0, 1, 3).contiguous() for x in (Q, K, V)),
    ),
    "einsum, softmax over its second dim": (
        lambda q, k, v: torch.einsum("ijbn,jbnd->ibnd", torch.einsum("ibnd,jbnd->ijbn", q, k).softmax(1), v),
        tuple(x.permute(2, 0, 1, 3).contiguous() for x in (Q, K, V)),
    ),
    "einsum, groups of heads after the tokens": (
        lambda q, k, v: torch.einsum(
            "bgnij,bjgd->bignd", torch.einsum("bignd,bjgd->bgnij", q, k).softmax(-1), v
        ),
        (t(2, 6, 2, 2, 8), t(2, 7, 2, 8, seed=8), t(2, 7, 2, 8, seed=9)),
    ),
    "einsum, width before the batch": (
        lambda q, k, v: torch.einsum("bnij,bnjd->dbin", (q @ k.mT).softmax(-1), v),
        (Q, K, V),
    ),
    "einsum of blocks, biased in place": (
        lambda q, k, v, m: torch.einsum(
            "...hij,...jhd->...ihd",
            torch.einsum("...ihd,...jhd->...hij", q, k).add_(m).float().softmax(-1).type_as(v),
            v,
        ),
        (t(2, 3, 6, 4, 8, seed=1), t(2, 3, 7, 4, 8, seed=2), t(2, 3, 7, 4, 8, seed=3), HEADWISE[None]),
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
