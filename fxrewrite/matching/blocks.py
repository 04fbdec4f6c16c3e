"""Values by blocks: dims split into (count, size) pairs and merged again, and scales of a block each.

A scale of each block of a matrix meets the matrix in one of two ways: the matrix is seen as blocks
(``w.view(n, bn, k, bk) * s[:, None, :, None]``), which ``split`` and ``merge`` terms read; or the scale is
repeated up to the matrix's size (``repeat_interleave``, or ``expand`` and ``reshape``), which
``unrepeated_blocks`` undoes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from .terms import RESHAPES, CallNode, argument, aten, rank_of
from .transparent import float_cast, rearranged, unchanged
from .value import View, is_tensor

Groups = tuple[tuple[int, ...], ...]


def grouped(fine: Sequence[Any], coarse: Sequence[Any]) -> list[list[int]] | None:
    """The dims of ``fine``, a shape, that make up each dim of ``coarse``; None where they do not, or where a
    size is symbolic."""
    if any(not isinstance(size, int) for size in (*fine, *coarse)):
        return None
    groups: list[list[int]] = []
    position = 0
    for size in coarse:
        group: list[int] = []
        product = 1
        while position < len(fine) and (product < size or not group):
            product *= fine[position]
            group.append(position)
            position += 1
        if product != size:
            return None
        groups.append(group)
    for left in range(position, len(fine)):
        if fine[left] != 1 or not groups:
            return None
        groups[-1].append(left)
    return groups


def split_or_merged(node: CallNode, dims: tuple[int | None, ...]) -> tuple[str, View, Groups] | None:
    """A reshape between a matrix and its blocks, as ("split" or "merge", the other value in the order of
    ``dims``, the sizes that make up each dim of the matrix in that order)."""
    source = node.args[0]
    if not is_tensor(source):
        return None
    before, after = source.meta["val"].shape, node.meta["val"].shape
    if len(before) == 2 and len(after) in (3, 4):
        groups = grouped(after, before)
        if groups is None:
            return None
        for order in ((0, 1), (1, 0)):
            if dims == (*groups[order[0]], *groups[order[1]]):
                return "split", View(source, order), _sizes(after, [groups[i] for i in order])
        return None
    if len(after) == 2 and len(before) in (3, 4) and None not in dims:
        groups = grouped(before, after)
        if groups is None:
            return None
        ordered = [groups[d] for d in dims if d is not None]
        inner = View(source, tuple(i for group in ordered for i in group))
        return "merge", inner, _sizes(before, ordered)
    return None


def _sizes(shape: Sequence[int], groups: Sequence[Sequence[int]]) -> Groups:
    return tuple(tuple(int(shape[i]) for i in group) for group in groups)


def unrepeated_blocks(view: View) -> tuple[View, list[int], frozenset[fx.Node]]:
    """What ``view`` repeats, how often along each of its dims, and the nodes in between.

    Entry i of a dim of ``view`` is entry i // count of that dim of the result.
    """
    best = view, [1] * view.rank, frozenset[fx.Node]()
    counts, passed = best[1], set()
    while True:
        passed.add(view.node)
        found = _repeated_here(view)
        if found is not None:
            view, by = found
            counts = [count * times for count, times in zip(counts, by, strict=True)]
            best = view, counts, frozenset(passed)
            continue
        inner = rearranged(view) or unchanged(view) or _first_entries(view) or float_cast(view)
        if inner is None:
            return best
        view = inner


def _first_entries(view: View) -> View | None:
    """The input of a slice that drops what a repetition has too many."""
    node: CallNode = view.node
    if node.target is not aten.slice.Tensor:
        return None
    start, step = argument(node, 2, "start") or 0, argument(node, 4, "step", 1)
    along = argument(node, 1, "dim", 0) % rank_of(node)
    if start != 0 or step != 1 or along not in view.dims:
        return None
    inner = View(node.args[0], view.dims)
    _, counts, _ = unrepeated_blocks(inner)
    return inner if counts[view.dims.index(along)] > 1 else None


def _repeated_here(view: View) -> tuple[View, list[int]] | None:
    node: CallNode = view.node
    if node.op != "call_function" or not node.args or not is_tensor(node.args[0]):
        return None
    if node.target is aten.repeat_interleave.self_int:
        over, times = argument(node, 2, "dim"), node.args[1]
        if over is None or not isinstance(times, int) or over % rank_of(node) not in view.dims:
            return None
        position = view.dims.index(over % rank_of(node))
        return View(node.args[0], view.dims), [times if i == position else 1 for i in range(view.rank)]
    return _expanded_and_merged(view, node) if node.target in RESHAPES else None


def _expanded_and_merged(view: View, node: CallNode) -> tuple[View, list[int]] | None:
    """``s[:, None].expand(n, times).reshape(n * times)``, of any dims at once."""
    wide: CallNode = node.args[0]
    while wide.target in (aten.clone.default, aten.contiguous.default):
        wide = wide.args[0]
    if wide.target is not aten.expand.default or not is_tensor(wide.args[0]):
        return None
    source = wide.args[0]
    after, expanded, before = (n.meta["val"].shape for n in (node, wide, source))
    groups = grouped(expanded, after)
    if groups is None or len(before) != len(expanded):
        return None
    dims: list[int | None] = []
    counts: list[int] = []
    for d in view.dims:
        if d is None:
            dims.append(None)
            counts.append(1)
            continue
        group = groups[d]
        kept = [i for i in group if before[i] != 1]
        if len(kept) > 1:
            return None
        last = group.index(kept[0]) if kept else len(group) - 1
        if kept and any(expanded[i] != 1 for i in group[:last]):
            return None  # tiled, not repeated
        times = 1
        for i in group[last + 1 :]:
            times *= int(expanded[i])
        dims.append(kept[0] if kept else None)
        counts.append(times if kept else 1)
    return View(source, tuple(dims)), counts
