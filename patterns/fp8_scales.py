"""How a scale lies over a weight: what the graph multiplies, as a grid of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from fxrewrite.matching import View
from fxrewrite.matching.blocks import Groups, unrepeated_blocks


@dataclass(frozen=True)
class Scheme:
    """``grid`` holds an element for each block of the weight: it broadcasts to the weight where ``block`` is
    None, else it has an element for each ``block`` of rows and columns. ``passed`` are the nodes that the
    graph has between the grid and the product."""

    grid: View
    block: tuple[int, int] | None
    passed: frozenset[fx.Node]


def scheme_of(scale: View, shape: Sequence[Any], groups: Groups | None) -> Scheme | None:
    """How ``scale`` lies over a weight [N, K] of this shape, None where it fits no scheme.

    ``groups`` are the sizes in which the graph sees each dim of the weight, where it multiplies blocks.
    """
    grid, repeats, passed = unrepeated_blocks(scale)
    if groups is None:
        groups = tuple((size,) for size in shape)
        if grid is scale and scale.rank <= 2 and _broadcasts(scale.shape, shape):
            return Scheme(scale, None, frozenset())
    rank = sum(len(group) for group in groups)
    if scale.rank > rank:
        return None
    missing = rank - scale.rank  # broadcasting adds dims in front
    picked: list[int | None] = []
    block: list[Any] = []
    position = 0
    for group in groups:
        axes = [position + i - missing for i in range(len(group))]
        position += len(group)
        found = _one_axis(scale, axes, group)
        if found is None:
            return None
        axis, size = found
        picked.append(axis)
        block.append(size if axis is None else size * repeats[axis])
    view = grid.pick(picked)
    n, k = shape
    if view.shape[0] in (1, n) and view.shape[1] in (1, k) and _is_plain(block, view, shape):
        return Scheme(view, None, passed)
    whole = [
        size if axis is not None else length for size, axis, length in zip(block, picked, shape, strict=True)
    ]
    if not all(isinstance(size, int) for size in (*whole, *view.shape, n, k)):
        return None
    fits = all(
        -(-length // size) == count for length, size, count in zip(shape, whole, view.shape, strict=True)
    )
    return Scheme(view, (whole[0], whole[1]), passed) if fits else None


def _one_axis(scale: View, axes: Sequence[int], group: Sequence[int]) -> tuple[int | None, int] | None:
    """The dim of ``scale`` that varies along one dim of the weight (None: none does), and how many entries of
    the weight's dim share an element. None where that is not so: a scale that varies within blocks."""
    varying = [i for i, axis in enumerate(axes) if axis >= 0 and not _is_one(scale.shape[axis])]
    if not varying:
        return None, 1
    (first, *more), size = varying, 1
    if more or any(length != 1 for length in group[:first]):
        return None
    for length in group[first + 1 :]:
        size *= length
    return axes[first], size


def _is_plain(block: Sequence[Any], view: View, shape: Sequence[Any]) -> bool:
    """Does the grid broadcast to the weight as it is?"""
    return all(
        _is_one(count) or (size == 1 and count == length)
        for size, count, length in zip(block, view.shape, shape, strict=True)
    )


def _broadcasts(sizes: Sequence[Any], shape: Sequence[Any]) -> bool:
    last = shape[len(shape) - len(sizes) :]
    return all(_is_one(size) or size == length for size, length in zip(sizes, last, strict=True))


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1
