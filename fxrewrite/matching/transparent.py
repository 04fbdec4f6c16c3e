"""Transparent operators: those that a match looks through, because they do not change the value.

Each is transparent only where that is certain: a cast to the same dtype, dropout that is switched
off, a view of the same shape, and rearrangements of dims, which the view carries along.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ..guards.prover import prove_equal
from ..guards.verdict import Verdict
from .terms import CASTS, RESHAPES, CallNode, rank_of
from .value import View, is_tensor

aten = torch.ops.aten
Order = Sequence[int | None]

# ------------------------------------------------------------------------------- rearrangements of dims


def _swapped(rank: int, a: int, b: int) -> list[int | None]:
    order: list[int | None] = list(range(rank))
    order[a], order[b] = order[b], order[a]
    return order


def _moved(rank: int, source: Sequence[int], destination: Sequence[int]) -> list[int | None]:
    source, destination = [s % rank for s in source], [d % rank for d in destination]
    rest = iter(d for d in range(rank) if d not in source)
    back = dict(zip(destination, source, strict=True))
    return [back[d] if d in back else next(rest) for d in range(rank)]


def _as_list(item: Any) -> list[int]:
    return [item] if isinstance(item, int) else list(item)


def _unsqueezed(node: CallNode, rank: int) -> list[int | None]:
    order: list[int | None] = list(range(rank))
    order.insert(node.args[1] % (rank + 1), None)
    return order


def _squeezed(node: CallNode, rank: int) -> list[int | None]:
    sizes = node.args[0].meta["val"].shape
    gone = [d % rank for d in _as_list(node.args[1]) if isinstance(sizes[d], int) and sizes[d] == 1]
    return [d for d in range(rank) if d not in gone]


_ORDERS: dict[Any, Callable[[CallNode, int], Order]] = {
    aten.permute.default: lambda n, r: [d % r for d in n.args[1]],
    aten.transpose.int: lambda n, r: _swapped(r, n.args[1], n.args[2]),
    aten.swapaxes.default: lambda n, r: _swapped(r, n.args[1], n.args[2]),
    aten.swapdims.default: lambda n, r: _swapped(r, n.args[1], n.args[2]),
    aten.t.default: lambda n, r: list(reversed(range(r))),
    aten.numpy_T.default: lambda n, r: list(reversed(range(r))),
    aten.mT.default: lambda n, r: _swapped(r, -2, -1),
    aten.movedim.int: lambda n, r: _moved(r, [n.args[1]], [n.args[2]]),
    aten.movedim.intlist: lambda n, r: _moved(r, n.args[1], n.args[2]),
    aten.moveaxis.int: lambda n, r: _moved(r, [n.args[1]], [n.args[2]]),
    aten.moveaxis.intlist: lambda n, r: _moved(r, n.args[1], n.args[2]),
    aten.unsqueeze.default: _unsqueezed,
    aten.squeeze.dim: _squeezed,
    aten.squeeze.dims: _squeezed,
}


def rearranged(view: View) -> View | None:
    """The same value as a view of the node's input, where the node only rearranges dims."""
    node: CallNode = view.node
    order_of = _ORDERS.get(node.target)
    if order_of is None or not is_tensor(node.args[0]):
        return None
    source = node.args[0]
    order = order_of(node, rank_of(source))
    return View(source, tuple(None if d is None else order[d] for d in view.dims))


# ----------------------------------------------------------------------------------- value-preserving

_COPIES = (
    aten.alias.default,
    aten.detach.default,
    aten.contiguous.default,
    aten.clone.default,
    aten.lift_fresh_copy.default,
)


def unchanged(view: View) -> View | None:
    """The same value as the node's input, where the node changes neither value, dtype nor shape."""
    node: CallNode = view.node
    if node.op != "call_function" or not node.args or not is_tensor(node.args[0]):
        return None
    source = node.args[0]
    if node.target in _COPIES:
        return View(source, view.dims)
    if node.target in CASTS and _same_dtype_and_device(node, source):
        return View(source, view.dims)
    if node.target is aten.dropout.default and (not node.args[2] or node.args[1] == 0):
        return View(source, view.dims)
    if (node.target in RESHAPES or node.target is aten.expand.default) and same_sizes(node, source):
        return View(source, view.dims)
    if node.target is aten.slice.Tensor and same_sizes(node, source):
        return View(source, view.dims)
    if node.target is aten.mul.Tensor and node.args[1] in (1, 1.0) and _same_dtype_and_device(node, source):
        return View(source, view.dims)
    return None


def float_cast(view: View) -> View | None:
    """The input of a cast between floating dtypes (FP8 apart), whatever the direction."""
    node: CallNode = view.node
    if node.target not in CASTS or not is_tensor(node.args[0]):
        return None
    source = node.args[0]
    after, before = node.meta["val"], source.meta["val"]
    if _is_plain_float(after.dtype) and _is_plain_float(before.dtype) and after.device == before.device:
        return View(source, view.dims)
    return None


def _is_plain_float(dtype: torch.dtype) -> bool:
    return dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _same_dtype_and_device(node: fx.Node, source: fx.Node) -> bool:
    after, before = node.meta["val"], source.meta["val"]
    return bool(after.dtype == before.dtype and after.device == before.device)


def same_sizes(node: fx.Node, source: fx.Node) -> bool:
    """Have both values provably the same shape?"""
    after, before = node.meta["val"].shape, source.meta["val"].shape
    return len(after) == len(before) and all(
        prove_equal(a, b, "").verdict is Verdict.PROVED for a, b in zip(after, before, strict=True)
    )


def regroups_leading(node: fx.Node, source: fx.Node) -> bool:
    """Does a reshape keep the last two dims, so that it only splits or merges leading ones?"""
    after, before = node.meta["val"].shape, source.meta["val"].shape
    return (
        len(after) >= 2
        and len(before) >= 2
        and all(
            prove_equal(a, b, "").verdict is Verdict.PROVED
            for a, b in zip(after[-2:], before[-2:], strict=True)
        )
    )
