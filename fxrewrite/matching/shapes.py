"""Readings of what changes shape or dtype, and of dropout."""

from __future__ import annotations

import operator
from typing import Any

from .blocks import split_or_merged
from .terms import CASTS, RESHAPES, CallNode, Dims, Term, argument, aten, dim_in_view, reads, shown_plainly
from .transparent import regroups_leading
from .value import View, plain


@reads("pad", aten.pad.default, aten.constant_pad_nd.default)
def _(node: CallNode, dims: Dims) -> list[Term]:
    pads = node.args[1]
    if node.target is aten.pad.default:
        mode, value = argument(node, 2, "mode", "constant"), argument(node, 3, "value")
    else:
        mode, value = "constant", argument(node, 2, "value", 0)
    found = {}
    for i in range(0, len(pads), 2):
        if (pads[i], pads[i + 1]) != (0, 0):
            dim = dim_in_view(node, dims, -1 - i // 2)
            if dim is None:
                return []
            found[dim] = (pads[i], pads[i + 1])
    if mode != "constant":
        return []
    return [Term("pad", (View(node.args[0], dims),), {"pads": found, "value": float(value or 0.0)})]


@reads("cat", aten.cat.default, aten.concat.default)
def _(node: CallNode, dims: Dims) -> list[Term]:
    parts, dim = node.args[0], dim_in_view(node, dims, argument(node, 1, "dim", 0))
    if dim is None or len(parts) != 2:
        return []
    return [Term("cat", tuple(View(part, dims) for part in parts), {"dim": dim})]


@reads("slice", aten.slice.Tensor)
def _(node: CallNode, dims: Dims) -> list[Term]:
    along = argument(node, 1, "dim", 0)
    dim = dim_in_view(node, dims, along)
    if dim is None or argument(node, 4, "step", 1) != 1:
        return []
    start, end = argument(node, 2, "start") or 0, argument(node, 3, "end")
    size = node.args[0].meta["val"].shape[along]
    if isinstance(end, int) and end >= (size if isinstance(size, int) else _TO_THE_END):
        end = None
    bounds = [(start, end)]
    if isinstance(size, int):  # each bound can be counted from either side
        starts = _from_both_sides(start, size)
        ends = [None] if end is None else _from_both_sides(end, size)
        bounds += [(s, e) for s in starts for e in ends if (s, e) != (start, end)]
    return [Term("slice", (View(node.args[0], dims),), {"dim": dim, "start": s, "end": e}) for s, e in bounds]


# What `x[1:]` passes for its end.
_TO_THE_END = 2**63 - 1


def _from_both_sides(bound: Any, size: int) -> list[Any]:
    """The same place in a dim of this size, counted from its start and from its end."""
    if not isinstance(bound, int) or not -size <= bound < size:
        return [bound]
    return [bound % size, bound % size - size]


@reads("half", operator.getitem)
def _(node: CallNode, dims: Dims) -> list[Term]:
    """An item of a ``chunk`` or ``split`` in two."""
    parts, index = node.args
    if parts.target not in (aten.chunk.default, aten.split.Tensor, aten.split_with_sizes.default):
        return []
    halves = shown_plainly(node, dims) and _is_half(node, parts, argument(parts, 2, "dim", 0))
    return [Term("half", (plain(parts.args[0]), index % 2), folded=(parts,))] if halves else []


@reads("half", aten.slice.Tensor)
def _(node: CallNode, dims: Dims) -> list[Term]:
    if not shown_plainly(node, dims) or not _is_half(node, node, argument(node, 1, "dim", 0)):
        return []
    start = (argument(node, 2, "start") or 0) % node.args[0].meta["val"].shape[-1]
    return [Term("half", (plain(node.args[0]), int(start != 0)))]


def _is_half(node: CallNode, parts: CallNode, dim: int) -> bool:
    """Is ``node`` half of what ``parts`` takes apart along the last dim, of a known size?"""
    whole, part = parts.args[0].meta["val"].shape, node.meta["val"].shape
    last = dim % len(whole) == len(whole) - 1
    if not last or not isinstance(whole[-1], int) or part[-1] * 2 != whole[-1]:
        return False
    if node.target is not aten.slice.Tensor:
        return True
    start = argument(node, 2, "start") or 0
    return isinstance(start, int) and start % whole[-1] in (0, part[-1]) and argument(node, 4, "step", 1) == 1


@reads("cast", *CASTS)
def _(node: CallNode, dims: Dims) -> list[Term]:
    # `x.to(y)` passes a tensor that only lends its dtype
    return [Term("cast", (View(node.args[0], dims),))]


@reads("regroup reshape split merge", *RESHAPES)
def _(node: CallNode, dims: Dims) -> list[Term]:
    terms = []
    if shown_plainly(node, dims):
        operator = "regroup" if regroups_leading(node, node.args[0]) else "reshape"
        terms.append(Term(operator, (plain(node.args[0]),), {"to": node.meta["val"].shape}))
    blocks = split_or_merged(node, dims)
    if blocks is not None:
        operator, inner, groups = blocks
        terms.append(Term(operator, (inner,), {f"{operator}_sizes": groups}))
    return terms


@reads("dropout", aten.dropout.default)
def _(node: CallNode, dims: Dims) -> list[Term]:
    return [Term("dropout", (View(node.args[0], dims),))]
