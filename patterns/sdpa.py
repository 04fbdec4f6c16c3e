"""Softmax attention: the framework's fused call, and the same written out by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fxrewrite.guards import Guard, holds, same_dtype, same_shape
from fxrewrite.guards.prover import prove_equal
from fxrewrite.guards.verdict import Verdict
from fxrewrite.matching import APPLIED_TO, Match, Pattern, Rule, View, Vocabulary
from fxrewrite.matching.elementwise import rounded
from fxrewrite.matching.masks import MaskKind


class FusedAttention(Rule):
    """``scaled_dot_product_attention`` with any of its flags."""

    kind = "sdpa"

    def pattern(self, op: Vocabulary, q: Pattern, k: Pattern, v: Pattern, mask: Pattern) -> Pattern:
        return op.sdpa(q, k, v, mask)

    def refine(self, m: Match) -> Match:
        grouped = m if m.attrs["enable_gqa"] else m.ungrouped("k", "v")
        if grouped is not m:
            m = replace(grouped, attrs={**m.attrs, "enable_gqa": True})
        kind = _mask_kind(m, m["mask"], m.value.dtype) if m.has("mask") else None
        if kind is None:
            return m
        attrs = {**m.attrs, "is_causal": kind is MaskKind.CAUSAL}
        return replace(m, bindings={**m.bindings, "mask": None}, attrs=attrs)

    def guards(self, m: Match) -> Iterator[Guard]:
        q, k, v = m["q"], m["k"], m["v"]
        yield holds(m.attrs["dropout"] == 0, "dropout is off", f"dropout is active, p = {m.attrs['dropout']}")
        yield holds(q.rank in (3, 4), "rank 3 or 4", f"rank {q.rank}")
        yield holds(q.rank == k.rank == v.rank, "query, key and value of one rank", "ranks differ")
        yield same_dtype({"query": q, "key": k, "value": v})
        yield same_shape(k.shape[:-1], v.shape[:-1], "key and value share batch, heads and length")
        shared = 1 if m.attrs["enable_gqa"] else -2
        yield same_shape(q.shape[:shared], k.shape[:shared], "query and key share batch and heads")
        if m.has("mask"):
            mask = m["mask"]
            yield holds(
                mask.rank <= q.rank, "the mask's rank is at most the query's", f"mask of rank {mask.rank}"
            )

    def replace(self, op: Any, m: Match) -> Any:
        root = m.root.meta["val"]
        q, k, v = (_with_heads(m[n]) for n in ("q", "k", "v"))
        out = op.fxrewrite.sdpa(
            q,
            k,
            v,
            m["mask"] if m.has("mask") else None,
            is_causal=m.attrs["is_causal"],
            scale=m.attrs["scale"],
            enable_gqa=m.attrs["enable_gqa"],
            token_major=_is_token_major(root),
        )
        return op.aten.squeeze.dim(out, 0) if root.dim() == 3 else out


class WrittenAttention(Rule):
    """softmax(q·kᵀ, scaled, masked and biased in any order) · v, written out."""

    kind = "sdpa"
    anchor = "softmax"

    def pattern(self, op: Vocabulary, q: Pattern, k: Pattern, v: Pattern) -> Pattern:
        scores = op.repeat(
            q @ k.mT,
            scale=lambda s, by: s * by,
            bias=lambda s, mask: s + mask,
            fill=lambda s, mask, value: op.masked_fill(s, mask, value),
            keep=lambda s, mask, value: op.where(mask, s, value),
            drop=lambda s, mask, value: op.where(mask, value, s),
            regroup=lambda s: op.regroup(s),
        )
        weights = op.repeat(op.softmax(scores, dim=-1), regroup=lambda w: op.regroup(w))
        attended = weights @ v
        return op.any_of(attended, attended.mT, attended.transpose(-3, -2))

    def refine(self, m: Match) -> Match:
        operands = {m[n].dtype for n in ("q", "k", "v")} | {m.root.meta["val"].dtype}
        m = m if len(operands) == 1 else m.narrowed("q", "k", "v")
        grouped = m.ungrouped("k", "v")
        if all(m[n].rank == 5 and _is_one(m[n].shape[2]) for n in ("k", "v")):
            # query heads in a dim of their own beside the key heads, which are broadcast over them
            bindings = {**m.bindings, "k": m["k"].pick([0, 1, 3, 4]), "v": m["v"].pick([0, 1, 3, 4])}
            grouped = replace(m, bindings=bindings)
        return replace(grouped, attrs={**m.attrs, "enable_gqa": grouped is not m})

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
        yield holds(2 <= q.rank <= 4 or beside, "rank 2 to 4", f"rank {q.rank}")
        shared = 2 if beside else 1 if m.attrs["enable_gqa"] else -2
        yield same_shape(q.shape[:shared], k.shape[:shared], "query and key share batch and heads")
        yield same_shape(k.shape[:-2], v.shape[:-2], "key and value share batch and heads")
        scores = _scores(m)
        yield holds(not scores.problem, "scores are scaled and masked in a known way", scores.problem)

    def replace(self, op: Any, m: Match) -> Any:
        scores = _scores(m)
        frame = scores.frame or m["q"].shape[:-2]
        if len(frame) == 3:
            frame = (frame[0], frame[1] * frame[2])
        lead = (1,) * (2 - len(frame)) + tuple(frame)
        grouped = m.attrs["enable_gqa"]
        q = op.reshaped(m["q"], (*lead, *m["q"].shape[-2:]))
        k, v = (m[n] if grouped else op.reshaped(m[n], (*lead, *m[n].shape[-2:])) for n in ("k", "v"))
        out = op.fxrewrite.sdpa(
            q,
            k,
            v,
            scores.mask(op),
            is_causal=scores.is_causal,
            scale=scores.scale,
            enable_gqa=grouped,
            mask_fill=scores.fill,
            safe_softmax=False,
            token_major=_is_token_major(m.value.val),
        )
        return op.as_root(op.reshaped(out, m.value.shape), m.value)


@dataclass
class _Mask:
    """A mask or bias, the leading dims of the scores that it was applied to, and their dtype with it."""

    view: View
    frame: tuple[Any, ...]
    dtype: torch.dtype
    factor: float = 1.0

    def in_frame(self, op: Any, frame: tuple[Any, ...]) -> Any:
        """The mask for scores whose leading dims are split or merged into ``frame``."""
        if _same_sizes(frame, self.frame):
            return self.view
        return op.reshaped(self.view, (*frame, *self.view.shape[-2:]))

    def fits(self, frame: tuple[Any, ...]) -> bool:
        """Can it be brought into ``frame`` without expanding it?"""
        return _same_sizes(frame, self.frame) or _same_sizes(self.view.shape[:-2], self.frame)


@dataclass
class _Scores:
    """The steps between q·kᵀ and the softmax, summed up: scale·s + biases, or ``fill`` where not ``keep``."""

    scale: float = 1.0
    offset: float = 0.0
    biases: list[_Mask] = field(default_factory=list)
    keep: _Mask | None = None
    inverted: bool = False
    fill: float | None = None
    is_causal: bool = False
    frame: tuple[Any, ...] | None = None
    problem: str = ""

    def mask(self, op: Any) -> Any:
        """The attn_mask of the op, built in the graph where several parts make it up."""
        frame = self.frame or ()
        if self.keep is not None:
            keep = self.keep.in_frame(op, frame)
            return op.aten.logical_not(keep) if self.inverted else keep
        parts = [(bias, bias.in_frame(op, frame)) for bias in self.biases]
        if len(parts) > 1 or any(bias.factor != 1.0 for bias, _ in parts):
            # they were added to scores that may be of a wider dtype than they are
            parts = [(bias, op.aten.to.dtype(part, bias.dtype)) for bias, part in parts]
        total: Any = None
        for bias, part in parts:
            scaled = part if bias.factor == 1.0 else op.aten.mul.Tensor(part, bias.factor)
            total = scaled if total is None else op.aten.add.Tensor(total, scaled)
        return total


def _scores(m: Match) -> _Scores:
    found = _Scores()
    for step, bound in m.steps:
        applied_to = bound.get(APPLIED_TO)
        frame = tuple(applied_to.shape[:-2] if isinstance(applied_to, View) else m["q"].shape[:-2])
        dtype = applied_to.dtype if isinstance(applied_to, View) else m.value.dtype
        if step == "scale":
            _apply_scale(found, bound["by"], dtype)
        elif step == "bias":
            _apply_bias(found, bound, frame, dtype)
        elif step in ("fill", "keep", "drop"):
            _apply_fill(found, bound, frame, dtype, inverted=step != "keep")
        if step in ("bias", "fill", "keep", "drop"):
            found.frame = max(found.frame or (), frame, key=len)
    if found.frame is not None and len(found.frame) > 2:
        found.problem = f"the mask is applied to scores of rank {len(found.frame) + 2}"
    for mask in (*found.biases, *([found.keep] if found.keep else [])):
        if not mask.fits(found.frame or ()):
            found.problem = "masks are applied in two different shapes of the scores"
    if m.attrs["enable_gqa"] and not _same_sizes(found.frame or m["q"].shape[:-2], m["q"].shape[:-2]):
        found.problem = "the mask is applied to scores of grouped heads in another shape"
    _fold_constant_masks(m, found)
    return found


def _fold_constant_masks(m: Match, found: _Scores) -> None:
    """Take out masks that let everything through, and read a causal one as the flag."""
    kinds = [_mask_kind(m, bias.view, bias.dtype) if bias.factor > 0 else None for bias in found.biases]
    rest = [bias for bias, kind in zip(found.biases, kinds, strict=True) if kind is not MaskKind.ALL]
    if len(rest) == 1 and MaskKind.CAUSAL in kinds and found.keep is None:
        found.is_causal, rest = True, []
    found.biases = rest
    if found.keep is None or found.fill is None or found.fill > torch.finfo(found.keep.dtype).min / 2:
        return
    kind = _mask_kind(m, found.keep.view, found.keep.dtype, inverted=found.inverted)
    if kind is not None:
        found.keep = found.fill = None
        found.is_causal = kind is MaskKind.CAUSAL


def _same_sizes(left: Any, right: Any) -> bool:
    return len(left) == len(right) and all(
        prove_equal(a, b, "").verdict is Verdict.PROVED for a, b in zip(left, right, strict=True)
    )


def _apply_scale(found: _Scores, by: Any, dtype: torch.dtype) -> None:
    if isinstance(by, View):
        found.problem = f"the scale is a tensor of shape {list(by.shape)}, not a number"
        return
    found.scale *= by
    found.offset *= by
    for bias in found.biases:
        bias.factor *= by
    if found.fill is not None:
        found.fill = rounded(found.fill * by, dtype)


def _apply_bias(found: _Scores, bound: dict[str, Any], frame: tuple[Any, ...], dtype: torch.dtype) -> None:
    mask = bound["mask"]
    if not isinstance(mask, View):
        # added to every score it does not change their softmax; what replaces scores later is not shifted
        found.offset += mask if found.keep is None else 0.0
        if not math.isfinite(mask):
            found.problem = f"{mask} is added to the scores"
        return
    if found.keep is not None:
        found.problem = "a bias is added to scores that are already masked"
    elif mask.dtype == torch.bool or not mask.dtype.is_floating_point:
        found.problem = f"the bias is {mask.dtype}"
    found.biases.append(_Mask(mask, frame, torch.promote_types(mask.dtype, dtype)))


def _apply_fill(
    found: _Scores, bound: dict[str, Any], frame: tuple[Any, ...], dtype: torch.dtype, *, inverted: bool
) -> None:
    value, mask = bound["value"], bound["mask"]
    if isinstance(value, View) or not isinstance(mask, View):
        found.problem = "masked scores are replaced by a tensor"
    elif found.keep is not None or found.biases:
        found.problem = "the scores are masked more than once"
    elif mask.dtype != torch.bool:
        found.problem = f"the mask is {mask.dtype}"
    else:
        found.keep, found.inverted = _Mask(mask, frame, dtype), inverted
        found.fill = rounded(value, dtype) - found.offset
        if math.isnan(found.fill):
            found.problem = "masked scores become NaN"


def _mask_kind(m: Match, mask: View, scores_dtype: torch.dtype, *, inverted: bool = False) -> MaskKind | None:
    """What the mask lets through, where no input decides it and that is everything or causal."""
    # half the lowest number swamps every score
    dropped = torch.finfo(scores_dtype).min / 2
    return m.masks.kind(mask, m["q"].shape[-2], m["k"].shape[-2], dropped, inverted=inverted)


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def _with_heads(view: View) -> View:
    """[B, L, D] as [1, B, L, D]."""
    return view if view.rank == 4 else view.pick([None, *range(view.rank)])


def _is_token_major(out: torch.Tensor) -> bool:
    """Is the result [B, H, L, D] laid out as [B, L, H, D]?"""
    return out.dim() == 4 and prove_equal(out.stride(1), out.shape[3], "").verdict is Verdict.PROVED
