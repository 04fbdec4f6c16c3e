"""Softmax attention: the framework's fused call, and the same written out by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from fxrewrite.guards import Guard, holds, same_dtype, same_shape
from fxrewrite.guards.prover import prove_equal
from fxrewrite.guards.verdict import Verdict
from fxrewrite.matching import Match, Pattern, Rule, View, Vocabulary
from fxrewrite.matching.terms import readings
from fxrewrite.matching.value import is_one, plain

from .scores import batch_and_heads, merged, scores_of, visible_in


class FusedAttention(Rule):
    """``scaled_dot_product_attention`` with any of its flags."""

    kind = "sdpa"

    def pattern(self, op: Vocabulary, q: Pattern, k: Pattern, v: Pattern, mask: Pattern) -> Pattern:
        return op.sdpa(q, k, v, mask)

    def refine(self, m: Match) -> Match:
        grouped = m.attrs["enable_gqa"] or _shares_a_head(m)
        if not grouped and (repeated := m.ungrouped("k", "v")) is not m:
            m, grouped = repeated, True
        attrs = {**m.attrs, "enable_gqa": grouped, "window": 0}
        visible = visible_in(m, m["mask"], m.value.dtype) if m.has("mask") else None
        if visible is None:
            return replace(m, attrs=attrs)
        attrs |= {"is_causal": visible.causal, "window": visible.window}
        return replace(m, bindings={**m.bindings, "mask": None}, attrs=attrs)

    def guards(self, m: Match) -> Iterator[Guard]:
        q, k, v = m["q"], m["k"], m["v"]
        yield holds(m.attrs["dropout"] == 0, "dropout is off", f"dropout is active, p = {m.attrs['dropout']}")
        yield holds(q.rank == k.rank == v.rank, "query, key and value of one rank", "ranks differ")
        yield same_dtype({"query": q, "key": k, "value": v})
        yield same_shape(k.shape[:-1], v.shape[:-1], "key and value share batch, heads and length")
        shared = q.rank - 3 if m.attrs["enable_gqa"] else q.rank - 2
        yield same_shape(q.shape[:shared], k.shape[:shared], "query and key share batch and heads")
        if m.has("mask"):
            mask = m["mask"]
            fits = mask.rank <= q.rank and (q.rank <= 4 or all(is_one(s) for s in mask.shape[:-2]))
            yield holds(fits, "the mask broadcasts to [batch, heads, L, S]", f"mask of shape {mask.shape}")

    def replace(self, op: Any, m: Match) -> Any:
        mask = m["mask"] if m.has("mask") else None
        if mask is not None and mask.rank > 4:
            mask = mask.pick([mask.rank - 2, mask.rank - 1])
        out = op.fxrewrite.sdpa(
            *(_as_rank_4(op, m[n]) for n in ("q", "k", "v")),
            mask,
            is_causal=m.attrs["is_causal"],
            scale=m.attrs["scale"],
            enable_gqa=m.attrs["enable_gqa"],
            token_major=_is_token_major(m.value.val),
            window=m.attrs["window"],
        )
        return op.as_root(op.reshaped(out, m.value.shape), m.value)


class _Written(Rule):
    """What is common to all spellings of softmax attention."""

    kind = "sdpa"

    def refine(self, m: Match) -> Match:
        operands = {m[n].dtype for n in ("q", "k", "v")} | {m.root.meta["val"].dtype}
        m = m if len(operands) == 1 else m.narrowed("q", "k", "v")
        grouped = m.ungrouped("k", "v")
        if all(m[n].rank == 5 and is_one(m[n].shape[2]) for n in ("k", "v")):
            # query heads in a dim of their own beside the key heads, which are broadcast over them
            bindings = {**m.bindings, "k": m["k"].pick([0, 1, 3, 4]), "v": m["v"].pick([0, 1, 3, 4])}
            grouped = replace(m, bindings=bindings)
        enable_gqa = grouped is not m or _shares_a_head(m)
        m = replace(grouped, attrs={**m.attrs, "enable_gqa": enable_gqa})
        return replace(m, attrs={**m.attrs, "scores": scores_of(m)})

    def guards(self, m: Match) -> Iterator[Guard]:
        q, k, v = m["q"], m["k"], m["v"]
        yield same_dtype({"query": q, "key": k, "value": v, "output": m.value})
        yield holds(q.dtype.is_floating_point, "floating point", f"query is {q.dtype}")
        narrow = q.dtype == torch.float64 or not m.computes_in(torch.float64)
        yield holds(narrow, "computed in float32 or less", "computed in float64 from narrower operands")
        beside = q.rank == 5 and k.rank == 4 and m.attrs["enable_gqa"]
        yield holds(
            q.rank == k.rank or beside,
            "query and key of one rank",
            f"query of rank {q.rank}, key of rank {k.rank}",
        )
        shared = 2 if beside else 1 if m.attrs["enable_gqa"] else -2
        yield same_shape(q.shape[:shared], k.shape[:shared], "query and key share batch and heads")
        of_k, of_v = k.shape[:-2], v.shape[:-2]
        if k.rank != v.rank and not m.attrs["enable_gqa"]:  # split or merged between the two products
            of_k, of_v = (math.prod(of_k),), (math.prod(of_v),)
        yield same_shape(of_k, of_v, "key and value share batch and heads")
        if any(step == "reshape" for step, _ in m.steps):
            rows_and_columns = m.value.shape[-2], v.shape[-2]
            yield same_shape(
                (q.shape[-2], k.shape[-2]), rows_and_columns, "scores that are split are joined again"
            )
        scores = m.attrs["scores"]
        yield holds(not scores.problem, "scores are scaled and masked in a known way", scores.problem)
        if m.has("sinks"):
            alike = q.rank == 4 and _sink_of_each_head(m["sinks"]) is not None
            yield holds(alike, "one sink for each head", f"sinks of shape {list(m['sinks'].shape)}")

    def replace(self, op: Any, m: Match) -> Any:
        scores = m.attrs["scores"]
        grouped = m.attrs["enable_gqa"]
        own = m["q"].shape[:-2]
        lead = batch_and_heads(scores.frame or (merged(own) if grouped else own))
        q = op.reshaped(scores.scaled_query(op, m["q"]), (*lead, *m["q"].shape[-2:]))
        k, v = (m[n] if grouped else op.reshaped(m[n], (*lead, *m[n].shape[-2:])) for n in ("k", "v"))
        mask = scores.mask(op, m["q"].dtype)
        out = op.fxrewrite.sdpa(
            q,
            k,
            v,
            mask,
            enable_gqa=grouped,
            safe_softmax=scores.is_safe or any(step == "safe" for step, _ in m.steps),
            token_major=_is_token_major(m.value.val),
            sinks=_sink_of_each_head(m["sinks"]) if m.has("sinks") else None,
            **scores.flags,
        )
        out = self.finished(op, m, out, mask)
        return op.as_root(op.reshaped(out, m.value.shape), m.value)

    def finished(self, op: Any, m: Match, out: Any, mask: Any) -> Any:
        """The op's result, with what its softmax does not do to wholly masked rows."""
        return m.attrs["scores"].without_empty_rows(op, out, mask)


class WrittenAttention(_Written):
    """softmax(q·kᵀ, scaled, masked and biased in any order) · v, written out."""

    anchor = "softmax"

    def pattern(self, op: Vocabulary, q: Pattern, k: Pattern, v: Pattern, sinks: Pattern) -> Pattern:
        scores = _scores(op, q, k)
        # GPT-OSS: a score a head that takes part in the softmax and is cut off again
        sunk = op.slice(op.softmax(op.cat(scores, sinks, dim=-1), dim=-1), -1, 0, -1)
        weights = op.repeat(
            op.any_of(op.softmax(scores, dim=-1), sunk),
            regroup=lambda w: op.regroup(w),
            safe=lambda w: op.rescued(w),
            zero=lambda w, again, zero: op.masked_fill(w, again, zero),
            zero_rest=lambda w, again, zero: op.where(again, w, zero),
            zero_first=lambda w, again, zero: op.where(again, zero, w),
        )
        attended = weights @ v
        late = op.weighted_mean(scores, v)
        return op.any_of(
            *(form for a in (attended, late) for form in (a, a.mT, a.transpose(-3, -2))),
            op.contracted(attended),
        )


class SunkAttention(_Written):
    """Attention with a score a head that has no value, whose weight is taken off the result.

    softmax of scores and sink together is softmax(scores) · sigmoid(logsumexp(scores) - sink).
    """

    def pattern(
        self, op: Vocabulary, q: Pattern, k: Pattern, v: Pattern, sinks: Pattern, logits: Pattern
    ) -> Pattern:
        attended = op.softmax(_scores(op, q, k), dim=-1) @ v
        return attended * op.sigmoid(op.logsumexp(logits, dim=-1) - sinks)

    def refine(self, m: Match) -> Match:
        logits, bindings = m["logits"], {n: b for n, b in m.bindings.items() if n != "logits"}
        # they are the scores: what the softmax is taken of
        alike = logits.is_plain and any(
            term.op == "softmax" and term.args[0] == logits
            for node in m.computed & set(logits.node.users)
            for term in readings(plain(node))
        )
        return super().refine(replace(m, bindings=bindings, attrs={**m.attrs, "alike": alike}))

    def applies(self, m: Match) -> bool:
        return bool(m.attrs["alike"])

    def guards(self, m: Match) -> Iterator[Guard]:
        yield from super().guards(m)
        if m.attrs["scores"].visible.window:
            yield same_shape(m["q"].shape[-2:-1], m["k"].shape[-2:-1], "no query is past every window")

    def finished(self, op: Any, m: Match, out: Any, mask: Any) -> Any:
        """With the sink a wholly masked row is zeros; times its logarithm it is NaN."""
        return m.attrs["scores"].with_nan_rows(op, out, mask)


def _scores(op: Vocabulary, q: Pattern, k: Pattern) -> Pattern:
    """q·kᵀ, scaled, masked and biased in any order."""
    return op.repeat(
        q @ k.mT,
        scale=lambda s, by: s * by,
        over=lambda s, by: s / by,
        cap=lambda s: op.tanh(s),
        bias=lambda s, mask: s + mask,
        less=lambda s, mask: s - mask,
        fill=lambda s, mask, value: op.masked_fill(s, mask, value),
        keep=lambda s, mask, value: op.where(mask, s, value),
        drop=lambda s, mask, value: op.where(mask, value, s),
        regroup=lambda s: op.regroup(s),
        reshape=lambda s: op.reshape(s),
    )


def _sink_of_each_head(sinks: View) -> View | None:
    """[H], where the sinks [B, H, L, 1] are one number a head, expanded."""
    node: Any = sinks.node
    if node.target is torch.ops.aten.expand.default:
        sinks = View(node.args[0], sinks.dims)
    others = [size for dim, size in enumerate(sinks.shape) if dim != 1]
    return sinks.pick([1]) if sinks.rank == 4 and all(map(is_one, others)) else None


def _shares_a_head(m: Match) -> bool:
    """Is one head of keys and values broadcast over those of the query (multi-query attention)?"""
    heads = [m[n].shape[1] if m[n].rank == 4 else None for n in ("q", "k", "v")]
    return None not in heads and is_one(heads[1]) and is_one(heads[2]) and not is_one(heads[0])


def _as_rank_4(op: Any, view: View) -> Any:
    """[..., L, D] as [batch, heads, L, D]."""
    if view.rank <= 4:
        return view.pick([None] * (4 - view.rank) + list(range(view.rank)))
    return op.reshaped(view, (*batch_and_heads(view.shape[:-2]), *view.shape[-2:]))


def _is_token_major(out: torch.Tensor) -> bool:
    """Is the result [B, H, L, D] laid out as [B, L, H, D]?"""
    return out.dim() == 4 and prove_equal(out.stride(1), out.shape[3], "").verdict is Verdict.PROVED
