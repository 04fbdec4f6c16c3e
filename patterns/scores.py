"""What happens to attention scores between q·kᵀ and the softmax, summed up for the fused op."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from fxrewrite.guards.prover import prove_equal
from fxrewrite.guards.verdict import Verdict
from fxrewrite.matching import APPLIED_TO, Match, View
from fxrewrite.matching.elementwise import rounded
from fxrewrite.matching.masks import ALL, Visible
from fxrewrite.matching.same import same_value
from fxrewrite.matching.value import is_one

# A score added to a number below this is that number, in float32.
SWALLOWS = -1e30


@dataclass
class Mask:
    """One step that masks or biases the scores.

    ``frame`` are the leading dims of the scores that it was applied to, ``dtype`` theirs with it.
    ``fill`` is None for a bias, which is added ``factor`` times; otherwise it replaces the scores
    where the boolean mask is False (``inverted``: True). Where rows or columns were split for it (an
    image's into height and width), ``split`` is the whole shape that the scores had, and ``whole`` their
    own last two sizes. A ``headwise`` mask has nothing of the first two of three leading dims, which are
    merged into one then.
    """

    view: View
    frame: tuple[Any, ...]
    dtype: torch.dtype
    factor: float = 1.0
    fill: float | None = None
    inverted: bool = False
    split: tuple[Any, ...] | None = None
    whole: tuple[Any, ...] = ()
    headwise: bool = False

    def in_frame(self, op: Any, frame: tuple[Any, ...]) -> Any:
        """The mask for scores whose leading dims are split or merged into ``frame``."""
        if self.split is not None:
            return self.joined(op, self.view, frame)
        if same_sizes(frame, self.frame):
            return self.view
        if self.headwise:
            return self.view.pick([None, 2, 3, 4])
        if self._is_headless:
            batch, *_ = dims = range(self.view.rank)
            return self.view.pick(dims[-2:] if self.view.rank < 5 else [batch, None, *dims[-2:]])
        return op.reshaped(self.view, (*frame, *self.view.shape[-2:]))

    def joined(self, op: Any, value: Any, frame: tuple[Any, ...]) -> Any:
        """What broadcasts to the ``split`` scores, for the scores in ``frame``."""
        expanded = op.aten.expand.default(value, [op.size(size) for size in self.split or ()])
        return op.reshaped(expanded, (*frame, *self.whole))

    def fits(self, frame: tuple[Any, ...]) -> bool:
        """Can it be brought into ``frame``, without expanding it unless it was applied to split scores?"""
        if self.split is not None or self.headwise:
            return True
        same = same_sizes(frame, self.frame) or same_sizes(self.view.shape[:-2], self.frame)
        return same or self._is_headless

    @property
    def may_be_headwise(self) -> bool:
        """Is it the same for all of the first two of three leading dims?"""
        lead = self.view.shape[:-2]
        return self.split is None and len(lead) == 3 and is_one(lead[0]) and is_one(lead[1])

    @property
    def _is_headless(self) -> bool:
        """Is it the same for every head, however the heads are grouped?"""
        lead = self.view.shape[:-2]
        return all(map(is_one, lead)) or (len(lead) == 3 and all(map(is_one, lead[1:])))

    def keeps(self, op: Any, frame: tuple[Any, ...] | None) -> Any:
        """The boolean mask that is True where scores are kept; without a frame, as it was applied."""
        mask = self.view if frame is None else self.in_frame(op, frame)
        return op.aten.logical_not(mask) if self.inverted else mask


@dataclass
class Scores:
    """softmax(scale · factors · q·kᵀ, then each of ``masks`` in turn), the factors being tensors.

    Where ``capped`` is a number, it is the scale of the tanh's argument, and ``scale`` that of the tanh.
    ``zeroed`` is the mask where the weights are 0 afterwards, in wholly masked rows too, and scores were not
    -inf before but finite if ``zeroed_from_numbers``.
    """

    scale: float = 1.0
    factors: list[tuple[str, View]] = field(default_factory=list)
    masks: list[Mask] = field(default_factory=list)
    offset: float = 0.0
    visible: Visible = ALL
    capped: float | None = None
    frame: tuple[Any, ...] | None = None
    zeroed: Mask | None = None
    zeroed_from_numbers: bool = False
    problem: str = ""

    @property
    def flags(self) -> dict[str, Any]:
        """The op's arguments that are numbers."""
        capped = self.capped is not None
        return {
            "is_causal": self.visible.causal,
            "window": self.visible.window,
            "scale": self.scale if self.capped is None else self.capped * self.scale,
            "softcap": self.scale if capped else 0.0,
            "mask_fill": self.fill,
        }

    @property
    def fill(self) -> float | None:
        """The op's ``mask_fill``: what a boolean mask puts in the place of scores."""
        return None if self._is_added or not self.masks else self.masks[0].fill

    @property
    def _is_added(self) -> bool:
        return any(mask.fill is None for mask in self.masks)

    @property
    def is_safe(self) -> bool:
        """Are the rows that ``zeroed`` masks wholly those whose every score is -inf?"""
        return self.zeroed is not None and self.masks in ([], [self.zeroed])

    def without_empty_rows(self, op: Any, out: Any, mask: Any) -> Any:
        """The attended values ``out`` [B, H, L, Dv], 0 in the rows whose weights ``zeroed`` makes all 0.

        ``mask`` is what was added to the scores.
        """
        if self.zeroed is None or self.is_safe:
            return out
        kept = self.zeroed.keeps(op, self.frame)
        if self.zeroed_from_numbers:  # which a row of biases of -inf leaves the whole sum
            some = op.aten.ne.Scalar(mask, -math.inf)
            some = op.aten.logical_or(op.aten.any.dim(some, -1, True), op.aten.all.dim(kept, -1, True))
        else:
            some = op.aten.any.dim(kept, -1, True)
        return op.aten.masked_fill.Scalar(out, op.aten.logical_not(some), 0.0)

    def with_nan_rows(self, op: Any, out: Any, mask: Any) -> Any:
        """``out`` [B, H, L, Dv], NaN in the rows whose every score ``mask``, as the op has it, makes -inf."""
        if mask is None or (self.fill is not None and math.isfinite(self.fill)):
            return out
        some = mask if self.fill is not None else op.aten.ne.Scalar(mask, -math.inf)
        some = op.aten.any.dim(some, -1, True)
        return op.aten.masked_fill.Scalar(out, op.aten.logical_not(some), math.nan)

    def mask(self, op: Any, query: torch.dtype) -> Any:
        """The op's ``attn_mask``, built in the graph where several steps make it up."""
        frame = self.frame or ()
        if not self._is_added:
            kept: Any = None
            for mask in self.masks:
                keeps = mask.keeps(op, frame)
                kept = keeps if kept is None else op.aten.logical_and(kept, keeps)
            return kept
        first = self.masks[0]
        if len(self.masks) == 1 and first.factor == 1.0 and first.view.dtype.is_floating_point:
            bias = first.in_frame(op, frame)
            readable = first.view.dtype in (torch.float32, query)
            return bias if readable else op.aten.to.dtype(bias, torch.float32)
        return self._replayed(op, frame)

    def _replayed(self, op: Any, frame: tuple[Any, ...]) -> Any:
        """The steps done to zeros: added to a score, it gives what the steps would have made of it."""
        first, total = self.masks[0], None
        # steps on the same split scores are put together first: they are broadcast there
        together = all(
            mask.split is not None and same_sizes(mask.split, first.split or ()) for mask in self.masks
        )
        for mask in self.masks:
            if mask.fill is None:
                part = op.aten.to.dtype(mask.view if together else mask.in_frame(op, frame), mask.dtype)
                part = part if mask.factor == 1.0 else op.aten.mul.Tensor(part, mask.factor)
                total = part if total is None else op.aten.add.Tensor(total, part)
            else:
                before = op.aten.zeros([], dtype=mask.dtype, device=mask.view.device)
                before = before if total is None else total
                keeps = mask.keeps(op, None if together else frame)
                total = op.aten.where.ScalarOther(keeps, before, mask.fill)
        return first.joined(op, total, frame) if together else total

    def scaled_query(self, op: Any, query: View) -> Any:
        """The query, with the factors that are tensors multiplied in."""
        scaled: Any = query
        for operation, factor in self.factors:
            multiply = op.aten.mul.Tensor if operation == "scale" else op.aten.div.Tensor
            scaled = multiply(scaled, factor)
        return op.aten.to.dtype(scaled, query.dtype) if self.factors else scaled


def scores_of(m: Match) -> Scores:
    """What the steps of a match do to the scores; ``problem`` says what of it the op cannot do."""
    found = Scores()
    own, whole = tuple(m["q"].shape[:-2]), (m["q"].shape[-2], m["k"].shape[-2])
    are_split = any(step == "reshape" for step, _ in m.steps)
    for step, bound in m.steps:
        applied_to = bound.get(APPLIED_TO)
        seen = isinstance(applied_to, View)
        shape = tuple(applied_to.shape) if isinstance(applied_to, View) else (*own, *whole)
        frame = shape[:-2]
        dtype = applied_to.dtype if isinstance(applied_to, View) else m.value.dtype
        masks = len(found.masks)
        if step in ("scale", "over"):
            _apply_scale(found, m, step, bound["by"], frame, dtype if seen else m["q"].dtype)
        elif step == "cap":
            _apply_cap(found)
        elif step in ("bias", "less"):
            _apply_bias(found, bound["mask"], frame, dtype, sign=1 if step == "bias" else -1)
        elif step in ("fill", "keep", "drop"):
            _apply_fill(found, bound, frame, dtype, inverted=step != "keep")
        elif step in ("zero", "zero_rest", "zero_first"):
            _apply_zeros(found, m, bound, inverted=step != "zero_rest")
        if step in ("bias", "less", "fill", "keep", "drop") and isinstance(bound["mask"], View):
            if are_split and not same_sizes(shape[-2:], whole):
                for mask in found.masks[masks:]:
                    mask.split, mask.whole = shape, whole
                frame = own
            if are_split and not isinstance(applied_to, View):
                found.problem = "scores that are split are scaled and masked in one call"
            found.frame = max(found.frame or (), frame, key=len)
    _fold(m, found)
    _check(m, found)
    return found


def _apply_scale(
    found: Scores, m: Match, step: str, by: Any, frame: tuple[Any, ...], dtype: torch.dtype
) -> None:
    if not isinstance(by, View):
        found.scale *= by
        found.offset *= by
        for mask in found.masks:
            mask.factor *= by
            if mask.fill is not None:
                mask.fill = rounded(mask.fill * by, dtype)
        return
    found.factors.append((step, by))
    if not all(is_one(size) for size in by.shape[-2:]):
        found.problem = f"the scale is a tensor of shape {list(by.shape)}, not one number a head"
    elif by.rank > 2 and not same_sizes(frame, m["q"].shape[:-2]):
        found.problem = "the scale is a tensor for scores of another shape than the query's"
    elif found.capped is not None:
        found.problem = "a tensor scales scores that are capped"
    elif found.masks or found.offset:
        found.problem = "a tensor scales scores that are already masked"
    elif dtype != m["q"].dtype:
        found.problem = f"a tensor scales scores of {dtype}, the query is {m['q'].dtype}"


def _apply_cap(found: Scores) -> None:
    if found.masks or found.offset or found.capped is not None:
        found.problem = "scores are capped after they are masked or shifted"
    found.capped, found.scale = found.scale, 1.0


def _apply_bias(found: Scores, mask: Any, frame: tuple[Any, ...], dtype: torch.dtype, *, sign: int) -> None:
    if isinstance(mask, View):
        found.masks.append(Mask(mask, frame, torch.promote_types(mask.dtype, dtype), factor=sign))
        return
    # added to every score it does not change their softmax; what replaces scores later is not shifted
    found.offset += 0.0 if any(m.fill is not None for m in found.masks) else sign * mask
    if not math.isfinite(mask):
        found.problem = f"{mask} is added to the scores"


def _apply_fill(
    found: Scores, bound: dict[str, Any], frame: tuple[Any, ...], dtype: torch.dtype, *, inverted: bool
) -> None:
    value, mask = bound["value"], bound["mask"]
    if isinstance(value, View) or not isinstance(mask, View):
        found.problem = "masked scores are replaced by a tensor"
    elif mask.dtype != torch.bool:
        found.problem = f"the mask is {mask.dtype}"
    else:
        fill = rounded(value, dtype) - found.offset
        found.masks.append(Mask(mask, frame, dtype, fill=fill, inverted=inverted))
        if math.isnan(fill):
            found.problem = "masked scores become NaN"


def _apply_zeros(found: Scores, m: Match, bound: dict[str, Any], *, inverted: bool) -> None:
    """Zeros in the weights: where the last mask of the scores has left next to nothing anyway."""
    mask = found.masks[-1] if found.masks else None
    alike = mask is not None and mask.inverted == inverted and bound["zero"] == 0
    if (
        mask is None
        or mask.fill is None
        or not alike
        or not same_value(mask.view, bound["again"], m.aliasing)
    ):
        found.problem = "weights are masked otherwise than scores"
    elif mask.fill > lowest(mask.dtype) / 2:
        found.problem = f"weights are masked, and a score could outweigh {mask.fill}"
    else:
        found.zeroed, found.zeroed_from_numbers = mask, math.isfinite(mask.fill)
        mask.fill = -math.inf


def _fold(m: Match, found: Scores) -> None:
    """Take out masks that let everything through, and read one that is alone as flags of the op."""
    seen = [_visible(m, mask) for mask in found.masks]
    rest = [(mask, visible) for mask, visible in zip(found.masks, seen, strict=True) if visible != ALL]
    if len(rest) == 1 and rest[0][1] is not None:
        found.visible, rest = rest[0][1], []
    if found.zeroed is not None and all(mask is not found.zeroed for mask, _ in rest):
        found.zeroed = found.zeroed if found.visible != ALL else None
    found.masks = [mask for mask, _ in rest]


def _visible(m: Match, mask: Mask) -> Visible | None:
    if (
        mask.split is not None
        or mask.factor <= 0
        or (mask.fill is not None and mask.fill > lowest(mask.dtype) / 2)
    ):
        return None
    return visible_in(m, mask.view, mask.dtype, inverted=mask.inverted)


def _check(m: Match, found: Scores) -> None:
    """Find what of the masks the op cannot do."""
    frame = found.frame
    if found.capped is not None and not found.scale > 0:
        found.problem = f"scores are capped at {found.scale}"
    if frame is None:
        return
    grouped = m.attrs["enable_gqa"]
    own = merged(m["q"].shape[:-2])
    if len(frame) == 3 and not grouped and all(mask.may_be_headwise for mask in found.masks):
        found.frame = frame = (frame[0] * frame[1], frame[2])
        for mask in found.masks:
            mask.headwise = True
    found.frame = frame = merged(frame)
    if len(frame) > 2:
        found.problem = f"the mask is applied to scores of rank {len(frame) + 2}"
    elif grouped and not same_sizes(frame, own):
        found.problem = "the mask is applied to scores of grouped heads in another shape"
    elif not all(mask.fits(frame) for mask in found.masks):
        found.problem = "masks are applied in two different shapes of the scores"
    fills = [mask.fill for mask in found.masks if mask.fill is not None]
    if len(found.masks) > 1 and any(fill > SWALLOWS for fill in fills):
        found.problem = f"scores are masked more than once, and a score could outweigh {max(fills)}"
    elif fills and len(set(fills)) > 1 and len(fills) == len(found.masks):
        found.problem = f"the scores are masked with different values: {sorted(set(fills))}"
    if any(mask.view.dtype.is_complex for mask in found.masks):
        found.problem = "the bias is complex"


def visible_in(m: Match, mask: View, scores: torch.dtype, *, inverted: bool = False) -> Visible | None:
    """What the mask lets through, where no input decides it and the op has flags for it."""
    # half the lowest number swamps every score
    dropped = lowest(scores) / 2
    return m.masks.visible(mask, m["q"].shape[-2], m["k"].shape[-2], dropped, inverted=inverted)


def lowest(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).min


def merged(lead: tuple[Any, ...]) -> tuple[Any, ...]:
    """Leading dims [batch, groups, heads of a group] as [batch, heads]."""
    return (lead[0], lead[1] * lead[2]) if len(lead) == 3 else tuple(lead)


def batch_and_heads(lead: tuple[Any, ...]) -> tuple[Any, Any]:
    """Any number of leading dims as two."""
    *batch, heads = lead or (1,)
    return math.prod(batch), heads


def same_sizes(left: Any, right: Any) -> bool:
    """Are the sizes provably the same?"""
    return len(left) == len(right) and all(
        prove_equal(a, b, "").verdict is Verdict.PROVED for a, b in zip(left, right, strict=True)
    )
