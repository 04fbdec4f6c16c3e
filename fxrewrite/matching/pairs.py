"""Readings of pairs of neighbours along the last dim: taken apart, and put together."""

from __future__ import annotations

import operator
from typing import Any

from torch import fx

from ..guards.prover import prove_equal
from ..guards.verdict import Verdict
from .terms import RESHAPES, CallNode, Dims, Term, argument, aten, dim_in_view, rank_of, reads
from .value import View, is_tensor


def _last_is_shown_last(node: fx.Node, dims: Dims) -> bool:
    return dim_in_view(node, dims, -1) == -1


def _paired(node: Any, x: Any) -> bool:
    """Is ``node`` [..., D / 2, 2] a reshape of ``x`` [..., D] into pairs of neighbours?"""
    if not isinstance(node, fx.Node) or node.target not in RESHAPES or not is_tensor(x):
        return False
    pairs, whole = node.meta["val"].shape, x.meta["val"].shape
    return len(pairs) == len(whole) + 1 and _are_pairs(pairs, whole)


def _are_pairs(pairs: Any, whole: Any) -> bool:
    width = whole[-1]
    return bool(
        isinstance(width, int)
        and pairs[-1] == 2
        and pairs[-2] * 2 == width
        and all(
            prove_equal(a, b, "").verdict is Verdict.PROVED
            for a, b in zip(pairs[:-2], whole[:-1], strict=True)
        )
    )


@reads("every_other", aten.slice.Tensor)
def _(node: CallNode, dims: Dims) -> list[Term]:
    size = node.args[0].meta["val"].shape
    last = argument(node, 1, "dim", 0) % len(size) == len(size) - 1
    start, end, step = argument(node, 2, "start") or 0, argument(node, 3, "end"), argument(node, 4, "step", 1)
    if not last or step != 2 or start not in (0, 1) or not isinstance(size[-1], int) or size[-1] % 2:
        return []
    if not (end is None or (isinstance(end, int) and end >= size[-1])) or not _last_is_shown_last(node, dims):
        return []
    return [Term("every_other", (View(node.args[0], dims),), {"start": start})]


@reads("every_other", operator.getitem)
def _(node: CallNode, dims: Dims) -> list[Term]:
    """An item of ``x.unflatten(-1, (-1, 2)).unbind(-1)``."""
    parts, start = node.args
    if parts.target is not aten.unbind.int:
        return []
    pairs, dim = parts.args[0], argument(parts, 1, "dim", 0)
    return _of_pairs(node, dims, pairs, dim, start, (parts, pairs))


@reads("every_other", aten.select.int)
def _(node: CallNode, dims: Dims) -> list[Term]:
    """``x.unflatten(-1, (-1, 2))[..., i]``."""
    pairs, dim, start = node.args
    return _of_pairs(node, dims, pairs, dim, start, (pairs,))


def _of_pairs(
    node: CallNode, dims: Dims, pairs: Any, dim: int, start: Any, folded: tuple[fx.Node, ...]
) -> list[Term]:
    x: Any = pairs.args[0] if pairs.args else None
    last = dim % rank_of(pairs) == rank_of(pairs) - 1
    if not last or not isinstance(start, int) or not _paired(pairs, x) or not _last_is_shown_last(node, dims):
        return []
    return [Term("every_other", (View(x, dims),), {"start": start % 2}, folded)]


@reads("interleave", *RESHAPES)
def _(node: CallNode, dims: Dims) -> list[Term]:
    """``torch.stack((a, b), -1).flatten(-2)``."""
    stacked: Any = node.args[0]
    if not is_tensor(stacked) or stacked.target is not aten.stack.default:
        return []
    parts, dim = stacked.args[0], argument(stacked, 1, "dim", 0)
    last = dim % rank_of(stacked) == rank_of(stacked) - 1
    pairs, whole = stacked.meta["val"].shape, node.meta["val"].shape
    together = len(parts) == 2 and last and len(pairs) == len(whole) + 1 and _are_pairs(pairs, whole)
    if not together or not _last_is_shown_last(node, dims):
        return []
    return [Term("interleave", tuple(View(part, dims) for part in parts), folded=(stacked,))]
