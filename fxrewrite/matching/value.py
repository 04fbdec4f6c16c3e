"""Values that patterns match: a node of the graph seen through a rearrangement of its dims.

``transpose``, ``permute``, ``t``, ``mT``, ``movedim``, ``unsqueeze`` and ``squeeze`` are absorbed
into the view, so a pattern that says ``k.mT`` meets every way to write it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx


@dataclass(frozen=True)
class View:
    """``node`` with its dims in the order ``dims``; None stands for an inserted dim of size 1.

    A dim of ``node`` that does not occur in ``dims`` has size 1 and is squeezed away.
    """

    node: fx.Node
    dims: tuple[int | None, ...]

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def shape(self) -> tuple[int | torch.SymInt, ...]:
        sizes = self.node.meta["val"].shape
        return tuple(1 if d is None else sizes[d] for d in self.dims)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.node.meta["val"].dtype
        return dtype

    @property
    def is_plain(self) -> bool:
        """Is this the node as it is?"""
        return self.dims == tuple(range(self.node.meta["val"].dim()))

    def pick(self, order: Sequence[int | None]) -> View:
        """The view whose dim i is this one's dim ``order[i]`` (None: an inserted dim)."""
        return View(self.node, tuple(None if i is None else self.dims[i] for i in order))

    @property
    def mT(self) -> View:
        """The last two dims swapped."""
        return View(self.node, (*self.dims[:-2], self.dims[-1], self.dims[-2]))

    @property
    def device(self) -> torch.device:
        device: torch.device = self.node.meta["val"].device
        return device

    @property
    def layout(self) -> torch.layout:
        layout: torch.layout = self.node.meta["val"].layout
        return layout

    @property
    def val(self) -> torch.Tensor:
        """The fake tensor of this view."""
        value: torch.Tensor = self.node.meta["val"]
        return value if self.is_plain else apply_dims(value, self.dims)


def apply_dims(tensor: torch.Tensor, dims: Sequence[int | None]) -> torch.Tensor:
    """``tensor`` rearranged as a View with these ``dims`` shows it."""
    kept = [d for d in dims if d is not None]
    dropped = [d for d in range(tensor.dim()) if d not in kept]
    out = tensor.permute(*dropped, *kept) if tensor.dim() else tensor
    for _ in dropped:
        out = out.squeeze(0)
    for position, d in enumerate(dims):
        if d is None:
            out = out.unsqueeze(position)
    return out


def plain(node: fx.Node) -> View:
    """``node`` as it is."""
    return View(node, tuple(range(node.meta["val"].dim())))


def is_tensor(item: Any) -> bool:
    """Is ``item`` a node that stands for one tensor?"""
    return isinstance(item, fx.Node) and isinstance(item.meta.get("val"), torch.Tensor)


def is_one(size: Any) -> bool:
    """Is this size known to be 1?"""
    return isinstance(size, int) and size == 1


def through_broadcast(item: Any, dims: Sequence[int | None], rank: int) -> Any:
    """Operand ``item`` of an elementwise op of output ``rank``, seen through the output's ``dims``."""
    if not is_tensor(item):
        return item
    lead = rank - item.meta["val"].dim()
    return View(item, tuple(None if d is None or d < lead else d - lead for d in dims))
