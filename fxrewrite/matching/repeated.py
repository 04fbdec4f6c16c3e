"""Heads that are repeated so that grouped keys and values fit: undone, where it can be seen."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ..guards.prover import prove_equal
from ..guards.verdict import Verdict
from .terms import RESHAPES, CallNode, argument, rank_of
from .transparent import rearranged, unchanged
from .value import View, is_tensor, plain

aten = torch.ops.aten


def unrepeated(view: View, axis: int) -> View | None:
    """The value whose every entry along ``axis`` was repeated, one copy beside the other, into ``view``.

    Written as ``repeat_interleave``, or as an inserted dim that is expanded and merged (``k[:, :, None]
    .expand(...).reshape(...)``). None where ``view`` is no such value.
    """
    while True:
        found = _unrepeated_here(view, axis)
        if found is not None:
            while (inner := rearranged(found) or unchanged(found)) is not None:
                found = inner
            return found
        inner = rearranged(view) or unchanged(view)
        if inner is None:
            return None
        view = inner


def passed_between(outer: View, inner: View) -> frozenset[fx.Node]:
    """The nodes from ``outer`` down to ``inner``, each the first operand of the one before."""
    passed: set[fx.Node] = set()
    node: Any = outer.node
    while node is not inner.node:
        passed.add(node)
        node = node.args[0]
    return frozenset(passed)


def _unrepeated_here(view: View, axis: int) -> View | None:
    node: CallNode = view.node
    dim = view.dims[axis]
    if dim is None or node.op != "call_function":
        return None
    if node.target is aten.repeat_interleave.self_int:
        over = argument(node, 2, "dim")
        return View(node.args[0], view.dims) if over is not None and over % rank_of(node) == dim else None
    if node.target not in RESHAPES or not is_tensor(node.args[0]):
        return None
    expanded = plain(node.args[0])
    while (inner := unchanged(expanded)) is not None and inner.is_plain:
        expanded = inner
    if expanded.node.target not in (aten.expand.default, aten.repeat.default):
        return None
    merged: CallNode = expanded.node
    source = merged.args[0]
    after, wide, before = (n.meta["val"].shape for n in (node, merged, source))
    if len(wide) != len(after) + 1 or len(before) != len(wide):
        return None
    copies = dim + 1
    kept = _equal(after[:dim], wide[:dim]) and _equal(after[dim + 1 :], wide[copies + 1 :])
    alone = _equal(before[:copies], wide[:copies]) and _equal(before[copies + 1 :], wide[copies + 1 :])
    if not (kept and alone and _equal(before[copies : copies + 1], (1,))):
        return None
    return View(source, tuple(d if d is None or d <= dim else d + 1 for d in view.dims))


def _equal(left: tuple[int | torch.SymInt, ...], right: tuple[int | torch.SymInt, ...]) -> bool:
    return len(left) == len(right) and all(
        prove_equal(a, b, "").verdict is Verdict.PROVED for a, b in zip(left, right, strict=True)
    )
