"""Linear attention with a ReLU feature map: SANA, DC-AE, SANA-Video.

Written token-major, [..., tokens, channels]; models that keep channels first are met transposed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

import torch

from fxrewrite.guards import Guard, at_least, dtype_in, equal, holds, same_shape
from fxrewrite.matching import Match, Pattern, Rule, View, Vocabulary
from fxrewrite.matching.same import same_value
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

    def applies(self, m: Match) -> bool:
        """A cast at the end belongs to the site where it narrows."""
        value, computed = m.root.meta["val"].dtype, _origin_of_cast(m.root)
        return computed is None or (value != computed and torch.promote_types(value, computed) == computed)

    def replace(self, op: Any, m: Match) -> Any:
        channel_major = m.value.dims == (0, 1, 3, 2)
        norms = (m["norm_q"], m["norm_k"]) if m.has("norm_q") else (None, None)
        turn = {name: m[name] for name in ("cos", "sin") if m.has(name)}
        bound = {"floor": m.number("floor", 0.0)} if m.has("floor") else {}
        out = op.fxrewrite.relu_linear_attention(
            m["q"],
            m["k"],
            m["v"],
            *norms,
            eps=m.number("eps", 0.0),
            **turn,
            **bound,
            relu=not m.has("norm_q"),
            out_dtype=m.value.dtype,
            channel_major=channel_major,
        )
        return op.as_root(out, m.value)


def _summed(op: Vocabulary, query: Pattern, key: Pattern) -> Pattern:
    """q·Σk of each token, as a product of matrices or element by element."""
    total = op.sum(key, dim=-2)
    return op.any_of(query @ total.mT, op.sum(query * total, dim=-1))


def _bounded(op: Vocabulary, normaliser: Pattern, eps: Pattern, floor: Pattern) -> Pattern:
    """A normaliser with something added, or with a bound, so that nothing is divided by zero."""
    return op.any_of(normaliser + eps, op.at_least(normaliser, floor), op.at_least(normaliser, floor) + eps)


def _in_any_layout(op: Vocabulary, attended: Pattern) -> Pattern:
    """As [..., heads, tokens, channels], channels first, or heads after tokens; each cast or not."""
    forms = op.cast(attended), attended
    return op.any_of(*(x for form in forms for x in (form, form.mT, form.transpose(-3, -2))))


class PaddedReluAttention(_LinearAttention):
    """SANA, DC-AE: a row of ones appended to V makes the normaliser the last row of the product."""

    def pattern(
        self, op: Vocabulary, q: Pattern, k: Pattern, v: Pattern, eps: Pattern, floor: Pattern
    ) -> Pattern:
        ones = op.pad(v, dim=-1, before=0, after=1, value=1.0)
        out = op.relu(q) @ (op.relu(k).mT @ ones)
        attended = op.slice(out, -1, 0, -1) / _bounded(op, op.slice(out, -1, -1, None), eps, floor)
        return _in_any_layout(op, attended)


class ReluAttention(_LinearAttention):
    """The normaliser from the sum of the keys: q·(kᵀv) / (q·Σk + eps)."""

    def pattern(
        self, op: Vocabulary, q: Pattern, k: Pattern, v: Pattern, eps: Pattern, floor: Pattern
    ) -> Pattern:
        query, key = op.relu(q), op.relu(k)
        normaliser = _bounded(op, _summed(op, query, key), eps, floor)
        attended = (query @ (key.mT @ v)) / normaliser
        return _in_any_layout(op, attended)


class QuadraticReluAttention(_LinearAttention):
    """DC-AE's form for few tokens: the matrix of weights first, each row divided by its sum.

    With fewer than four tokens the weights hardly round, and the other order of products would.
    """

    def guards(self, m: Match) -> Iterator[Guard]:
        yield from super().guards(m)
        yield at_least(m["k"].shape[-2], 4, "tokens")

    def pattern(
        self, op: Vocabulary, q: Pattern, k: Pattern, v: Pattern, eps: Pattern, floor: Pattern
    ) -> Pattern:
        weights = op.relu(q) @ op.relu(k).mT
        normaliser = _bounded(op, op.sum(weights, dim=-1), eps, floor)
        return _in_any_layout(op, (weights / normaliser) @ v)


class RotaryReluAttention(_LinearAttention):
    """SANA-Video: rotary embeddings on the numerator's features, the normaliser from those before.

    The op turns the features itself where it can; else the turned ones are operands.
    """

    def pattern(
        self,
        op: Vocabulary,
        q: Pattern,
        k: Pattern,
        v: Pattern,
        cos: Pattern,
        sin: Pattern,
        cos_k: Pattern,
        sin_k: Pattern,
        norm_q: Pattern,
        norm_k: Pattern,
        eps: Pattern,
        floor: Pattern,
    ) -> Pattern:
        def attended(query: Pattern, key: Pattern, norm_query: Pattern, norm_key: Pattern) -> Pattern:
            normaliser = _bounded(op, _summed(op, norm_query, norm_key), eps, floor)
            return _in_any_layout(op, (query @ (key.mT @ v)) / normaliser)

        query, key = op.relu(q), op.relu(k)
        turned = _turned(op, query, cos, sin), _turned(op, key, cos_k, sin_k)
        return op.any_of(attended(*turned, query, key), attended(q, k, norm_q, norm_k))

    def refine(self, m: Match) -> Match:
        narrow = super().refine(m)
        return narrow if not m.has("cos") or _rounded_to(m, narrow) else m

    def applies(self, m: Match) -> bool:
        if m.has("cos"):
            same = all(
                same_value(m.bindings[name], m.bindings[f"{name}_k"], m.aliasing) for name in ("cos", "sin")
            )
        else:
            same = _is_relu(m["norm_q"]) and _is_relu(m["norm_k"])
        return same and super().applies(m)

    def guards(self, m: Match) -> Iterator[Guard]:
        yield from super().guards(m)
        if not m.has("cos"):
            return
        q = m["q"]
        yield holds(
            _rounded_to(m, m), "features keep their dtype", "turned features are wider than those before"
        )
        for name in ("cos", "sin"):
            angles = m[name]
            yield dtype_in(angles.val, [torch.bfloat16, torch.float32], name)
            yield equal(angles.shape[-1] * 2, q.shape[-1], f"pairs of {name}")
            for dim, size in enumerate(angles.shape[:-1]):
                if not (isinstance(size, int) and size == 1):
                    yield equal(size, q.shape[dim], f"dim {dim} of {name}")


def _turned(op: Vocabulary, x: Pattern, cos: Pattern, sin: Pattern) -> Pattern:
    """A rotary embedding of pairs of neighbours."""
    a, b = op.every_other(x, 0), op.every_other(x, 1)
    return op.interleave(a * cos - b * sin, a * sin + b * cos)


def _rounded_to(m: Match, bound: Match) -> bool:
    """Are turned features no wider than q and k as ``bound``? The op rounds them to those dtypes."""
    kept = []
    for node in filter(is_tensor, m.computed):
        if any(term.op == "interleave" for term in readings(plain(node))):
            dtypes = [n.meta["val"].dtype for n in _as_cast(node, m)]
            kept.append(min(dtypes, key=lambda dtype: dtype.itemsize))
    wide = reduce(torch.promote_types, kept)
    return all(torch.promote_types(bound[name].dtype, wide) == bound[name].dtype for name in ("q", "k"))


def _as_cast(node: Any, m: Match) -> Iterator[Any]:
    """The value and what it is cast to on its way through the match."""
    yield node
    for user in node.users:
        if user in m.seen and is_tensor(user) and _inner(plain(user)) is not None:
            yield from _as_cast(user, m)


def _is_relu(view: View) -> bool:
    return any(term.op == "relu" for term in readings(_origin(view)))


def _origin_of_cast(node: Any) -> torch.dtype | None:
    """The dtype of what ``node`` is a cast of; None where it is no cast."""
    is_cast = any(term.op == "cast" for term in readings(plain(node)))
    return node.args[0].meta["val"].dtype if is_cast else None


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
