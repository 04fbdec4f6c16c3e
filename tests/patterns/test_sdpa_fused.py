"""The fused call: what must be a site, and the twins that must not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fxrewrite.report import Reason
from tests.support.graphs import assert_right, rewritten

from .attention import BIAS, HEADWISE, KEEP, K, Q, V, qkv, t

pytestmark = pytest.mark.usefixtures("any_kernel")


def test_fused_before_and_after():
    function = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.25)  # noqa: E731
    found = rewritten(function, Q, K, V)
    assert found.before.count(" = scaled_dot_product_attention.default(") == 1
    assert found.after.startswith("sdpa_default = fxrewrite.sdpa.default(q_1, k_1, v_1, None, ")
    assert found.after.endswith("\nreturn sdpa_default")
    assert found.after.count("\n") == 1
    assert "scale=0.25" in found.after
    assert found.of("sdpa").rule == "FusedAttention"


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
