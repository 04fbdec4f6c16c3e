"""Who shares memory with whom, and who writes to it: what makes a match unsafe to move."""

from __future__ import annotations

import operator
from typing import Any, cast

import torch
from torch import fx

from .terms import CASTS


class Aliasing:
    """Storages and writes of one graph.

    A node's *storage* is named by the node that allocated it. Views, and operators whose result may
    be their input (``reshape``, ``contiguous``, ``to``), share the storage of that input.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self._storage: dict[fx.Node, fx.Node] = {}
        self.position: dict[fx.Node, int] = {}
        self._writes: list[tuple[int, fx.Node]] = []
        for index, node in enumerate(graph.nodes):
            self.position[node] = index
            self._storage[node] = self._find_storage(node)
            for written in _written_arguments(node):
                self._writes.append((index, self._storage[written]))
        self._mutated = {storage for _, storage in self._writes}

    def is_mutated(self, node: fx.Node) -> bool:
        """Is the memory that ``node`` allocated (or is part of) ever written to?"""
        return self.storage(node) in self._mutated

    def storage(self, node: fx.Node) -> fx.Node:
        return self._storage.get(node, node)

    def is_fresh(self, node: fx.Node) -> bool:
        """Does ``node`` allocate its own memory?"""
        return self._storage.get(node) is node and node.op == "call_function"

    def written_between(self, node: fx.Node, first: int, last: int) -> fx.Node | None:
        """A write, after position ``first`` and before ``last``, to memory that ``node`` may be in."""
        storage = self.storage(node)
        for position, written in self._writes:
            # two inputs of a graph may be views of one tensor
            both_inputs = storage.op == written.op == "placeholder"
            if first < position < last and (written is storage or both_inputs):
                return written
        return None

    def _find_storage(self, node: fx.Node) -> fx.Node:
        if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
            return self._storage[node.args[0]]
        if node.target is getattr:  # a tensor inside of another
            return self._storage[cast(fx.Node, node.args[0])]
        source = _aliased_argument(node)
        return node if source is None else self._storage[source]


def _arguments(node: fx.Node) -> list[tuple[Any, Any]]:
    """(schema argument, value) pairs of a call of an operator."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return []
    pairs = list(zip(schema.arguments, node.args, strict=False))
    by_name = {a.name: a for a in schema.arguments}
    pairs += [(by_name[name], value) for name, value in node.kwargs.items() if name in by_name]
    return pairs


def _nodes_in(value: Any) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.map_arg(value, lambda n: found.append(n))
    return found


def _written_arguments(node: fx.Node) -> list[fx.Node]:
    return [
        n
        for argument, value in _arguments(node)
        if argument.alias_info is not None and argument.alias_info.is_write
        for n in _nodes_in(value)
    ]


def _aliased_argument(node: fx.Node) -> fx.Node | None:
    """The first input that the result of ``node`` may share memory with."""
    schema = getattr(node.target, "_schema", None)
    if schema is not None and any(r.alias_info is not None for r in schema.returns):
        for argument, value in _arguments(node):
            if argument.alias_info is not None:
                nodes = _nodes_in(value)
                if node.target in CASTS and nodes and _dtype(nodes[0]) != _dtype(node):
                    return None  # the schema allows for a cast that changes nothing; this one copies
                if nodes and isinstance(nodes[0].meta.get("val"), (torch.Tensor, list, tuple)):
                    return nodes[0]
    # Composite operators do not declare it where they hand on their input: `type_as`, a trivial
    # `einsum`. What was seen at the tracing tells, except that fake dropout is a copy.
    if node.target in _SWITCHABLE and isinstance(node.args[0], fx.Node):
        return node.args[0]
    held = _memory(node)
    return next((source for source in node.all_input_nodes if held & _memory(source)), None)


def _dtype(node: fx.Node) -> torch.dtype | None:
    return getattr(node.meta.get("val"), "dtype", None)


# Where they are switched off, they return their input.
_SWITCHABLE = (
    torch.ops.aten.dropout.default,
    torch.ops.aten.alpha_dropout.default,
    torch.ops.aten.feature_dropout.default,
    torch.ops.aten.feature_alpha_dropout.default,
)


def shares_memory(left: fx.Node, right: fx.Node) -> bool:
    """Are the traced values of both nodes in the same memory?"""
    return not _memory(left).isdisjoint(_memory(right))


def _memory(node: fx.Node) -> set[int]:
    """The storages of the traced values of ``node``."""
    values = node.meta.get("val")
    tensors = values if isinstance(values, (list, tuple)) else [values]
    return {
        t.untyped_storage()._cdata
        for t in tensors
        if isinstance(t, torch.Tensor) and t.layout is torch.strided
    }
