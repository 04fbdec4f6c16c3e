"""Values that no input of the graph decides: masks built from ``arange``, mostly. Evaluated when asked."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ..capture import computing
from .aliasing import Aliasing
from .value import View, apply_dims, is_tensor

# Larger values are not looked at: 2^26 elements take about 0.1 s to build.
LARGEST = 1 << 26


class Constants:
    """The constant values of one graph."""

    def __init__(self, aliasing: Aliasing) -> None:
        self._aliasing = aliasing
        self._known: dict[fx.Node, Any] = {}

    def is_constant(self, view: View) -> bool:
        """Does the value depend on no input, and is it small enough to look at?"""
        return self._is_constant(view.node)

    def value(self, view: View) -> torch.Tensor:
        """The tensor that ``view``, which is constant, stands for."""
        with computing(), torch.no_grad():
            return apply_dims(self._evaluate(view.node), view.dims)

    def _is_constant(self, node: fx.Node) -> bool:
        """Can ``node`` be computed from nothing? Iterative: chains may be long."""
        pending, seen = [node], set()
        while pending:
            item = pending.pop()
            if item in seen or item in self._known:
                continue
            seen.add(item)
            if item.op != "call_function" or self._aliasing.is_mutated(item):
                return False
            if not _is_pure(item) or not _is_small(item.meta.get("val")):
                return False
            pending.extend(item.all_input_nodes)
        return True

    def _evaluate(self, node: fx.Node) -> Any:
        if node not in self._known:
            args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), self._evaluate)
            self._known[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        return self._known[node]


def _is_pure(node: fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return not is_tensor(node)  # arithmetic on sizes
    return not node.target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in node.target.tags


def _is_small(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        sizes = value.shape
        return (
            all(isinstance(s, int) for s in sizes) and sizes.numel() <= LARGEST and value.device.type == "cpu"
        )
    return isinstance(value, (int, float, bool))
