"""Linear attention with a ReLU feature map: SANA, DC-AE, SANA-Video.

Written token-major, [..., tokens, channels]; models that keep channels first are met transposed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from fxrewrite.guards import Guard, at_least, holds, same_shape
from fxrewrite.matching import Match, Pattern, Rule, View, Vocabulary
from fxrewrite.matching.terms import readings
from fxrewrite.matching.transparent import float_cast, rearranged, unchanged
from fxrewrite.matching.value import is_tensor, plain


class _LinearAttention(Rule):
    kind = "linear_attention"
    anchor = "relu"
    fed_by = frozenset()

    def is_anchor(self, node: Any) -> bool:
        """Features multiplied by a product or by other features; what is multiplied by weights is a layer."""
        operands = (a for product in _products_of(node) for a in product.all_input_nodes)
        return any(
            term.op in ("matmul", "relu")
            for operand in operands
            if (origin := _origin(operand)).node is not node
            for term in readings(origin)
        )

    def refine(self, m: Match) -> Match:
        return m.narrowed(*(n for n in ("q", "k", "v", "norm_q", "norm_k") if m.has(n)))

    def guards(self, m: Match) -> Iterator[Guard]:
        q, k, v = m["q"], m["k"], m["v"]
        yield holds(q.rank == 4, "rank 4", f"rank {q.rank}")
        narrow = v.dtype == torch.float64 or not m.computes_in(torch.float64)
        yield holds(narrow, "computed in float32 or less", "computed in float64 from narrower operands")
        yield same_shape(q.shape[:-2], k.shape[:-2], "query and key share batch and heads")
        yield same_shape(k.shape[:-2], v.shape[:-2], "key and value share batch and heads")
        eps = m.bindings.get("eps")
        yield holds(not isinstance(eps, View), "eps is a number", "eps is a tensor")

    def replace(self, op: Any, m: Match) -> Any:
        channel_major = m.value.dims == (0, 1, 3, 2)
        norms = (m["norm_q"], m["norm_k"]) if m.has("norm_q") else (None, None)
        out = op.fxrewrite.relu_linear_attention(
            m["q"],
            m["k"],
            m["v"],
            *norms,
            eps=m.number("eps", 0.0),
            relu=not m.has("norm_q"),
            out_dtype=m.value.dtype,
            channel_major=channel_major,
        )
        return op.as_root(out, m.value)


def _in_any_layout(op: Vocabulary, attended: Pattern) -> Pattern:
    """As [..., heads, tokens, channels], channels first, or heads after tokens."""
    return op.any_of(attended, attended.mT, attended.transpose(-3, -2))


class PaddedReluAttention(_LinearAttention):
    """SANA, DC-AE: a row of ones appended to V makes the normaliser the last row of the product."""

    def pattern(self, op: Vocabulary, q: Pattern, k: Pattern, v: Pattern, eps: Pattern) -> Pattern:
        ones = op.pad(v, dim=-1, before=0, after=1, value=1.0)
        out = op.relu(q) @ (op.relu(k).mT @ ones)
        attended = op.slice(out, -1, 0, -1) / (op.slice(out, -1, -1, None) + eps)
        return _in_any_layout(op, attended)


class ReluAttention(_LinearAttention):
    """The normaliser from the sum of the keys: q·(kᵀv) / (q·Σk + eps)."""

    def pattern(self, op: Vocabulary, q: Pattern, k: Pattern, v: Pattern, eps: Pattern) -> Pattern:
        query, key = op.relu(q), op.relu(k)
        attended = (query @ (key.mT @ v)) / (query @ op.sum(key, dim=-2).mT + eps)
        return _in_any_layout(op, attended)


class QuadraticReluAttention(_LinearAttention):
    """DC-AE's form for few tokens: the matrix of weights first, each row divided by its sum.

    With fewer than four tokens the weights hardly round, and the other order of products would.
    """

    def guards(self, m: Match) -> Iterator[Guard]:
        yield from super().guards(m)
        yield at_least(m["k"].shape[-2], 4, "tokens")

    def pattern(self, op: Vocabulary, q: Pattern, k: Pattern, v: Pattern, eps: Pattern) -> Pattern:
        weights = op.relu(q) @ op.relu(k).mT
        return _in_any_layout(op, (weights / (op.sum(weights, dim=-1) + eps)) @ v)


class RotaryReluAttention(_LinearAttention):
    """SANA-Video: rotary embeddings on the numerator's features, the normaliser from those before."""

    def pattern(
        self,
        op: Vocabulary,
        q: Pattern,
        k: Pattern,
        v: Pattern,
        norm_q: Pattern,
        norm_k: Pattern,
        eps: Pattern,
    ) -> Pattern:
        attended = (q @ (k.mT @ v)) / (norm_q @ op.sum(norm_k, dim=-2).mT + eps)
        return _in_any_layout(op, attended)

    def applies(self, m: Match) -> bool:
        return _is_relu(m["norm_q"]) and _is_relu(m["norm_k"])


def _is_relu(view: View) -> bool:
    return any(term.op == "relu" for term in readings(_origin(view)))


def _inner(view: View) -> View | None:
    """The value one operator further in, where that one only rearranges, copies or casts."""
    return rearranged(view) or unchanged(view) or float_cast(view)


def _origin(item: Any) -> View:
    """What a value is before it is rearranged, copied or cast."""
    view = item if isinstance(item, View) else plain(item)
    while (inner := _inner(view)) is not None:
        view = inner
    return view


def _products_of(node: Any) -> Iterator[Any]:
    """The matrix products that take the node, rearranged, copied or cast."""
    for user in filter(is_tensor, node.users):
        if any(term.op == "matmul" for term in readings(plain(user))):
            yield user
        elif _inner(plain(user)) is not None:
            yield from _products_of(user)
