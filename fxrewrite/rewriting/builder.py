"""The builder: a rule's ``replace`` writes operators with it, and nodes appear in the graph."""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from ..capture import symbolic_expression
from ..guards.prover import prove_equal
from ..guards.verdict import Verdict
from ..matching.value import View
from ..ops.library import fake_call


class UnbuildableError(Exception):
    """What a rule wants to insert cannot be written in this graph: no fault, but the end of its site."""


class Builder:
    """Inserts operators before ``root``: ``op.fxrewrite.linear(x, w)``, ``op.aten.mul.Tensor(x, 2)``.

    Operands are views, nodes, numbers or None.
    """

    def __init__(self, graph: fx.Graph, root: fx.Node, mode: FakeTensorMode | None) -> None:
        self._graph, self._root, self._mode = graph, root, mode
        self.inserted: list[fx.Node] = []

    def __getattr__(self, namespace: str) -> _Namespace:
        return _Namespace(self, getattr(torch.ops, namespace))

    def tensor(self, view: View) -> fx.Node:
        """The node for a view; rearranging its dims costs no copy."""
        node = view.node
        if view.is_plain:
            return node
        kept = [d for d in view.dims if d is not None]
        dropped = [d for d in range(node.meta["val"].dim()) if d not in kept]
        order = [*dropped, *kept]
        if order != sorted(order):
            node = self.call(torch.ops.aten.permute.default, node, order)
        if dropped:
            node = self.call(torch.ops.aten.squeeze.dims, node, list(range(len(dropped))))
        for position, d in enumerate(view.dims):
            if d is None:
                node = self.call(torch.ops.aten.unsqueeze.default, node, position)
        return node

    def reshaped(self, view: View | fx.Node, shape: tuple[Any, ...]) -> fx.Node:
        """``view`` in another shape; sizes may be symbolic."""
        node = self.tensor(view) if isinstance(view, View) else view
        before = node.meta["val"].shape
        if len(before) == len(shape) and all(
            prove_equal(a, b, "").verdict is Verdict.PROVED for a, b in zip(before, shape, strict=True)
        ):
            return node
        return self.call(torch.ops.aten.reshape.default, node, [self.size(s) for s in shape])

    def as_root(self, out: fx.Node, view: View) -> fx.Node:
        """``out``, the value of ``view`` of the root, as the root itself has it: dims and memory order."""
        back = [view.dims.index(d) for d in range(view.rank)]
        if back != list(range(view.rank)):
            out = self.call(torch.ops.aten.permute.default, out, back)
        wanted = self._root.meta["val"]
        order = _memory_order(wanted)
        if order is not None and not _is_dense(out.meta["val"], order):
            out = self.call(torch.ops.aten.permute.default, out, order)
            out = self.call(torch.ops.aten.clone.default, out, memory_format=torch.contiguous_format)
            out = self.call(torch.ops.aten.permute.default, out, [order.index(d) for d in range(len(order))])
        return out

    def size(self, size: int | torch.SymInt) -> Any:
        """A size as an argument: an int, or the node that computes the symbolic one."""
        if isinstance(size, int):
            return size
        wanted = symbolic_expression(size)
        found: Any = self._known_size(wanted)
        if found is None and isinstance(wanted, sympy.Mul):
            # merged dims: a product of sizes that are known
            factors = [int(f) if f.is_Integer else self._known_size(f) for f in wanted.args]
            if None not in factors:
                found = functools.reduce(lambda a, b: self.call(operator.mul, a, b), factors)
        if found is None:
            raise UnbuildableError(f"no value in the graph has the size {size}")
        return found

    def _known_size(self, wanted: sympy.Expr) -> Any:
        """A node before the root that computes the size, made from a tensor's shape if need be."""
        before = list(itertools.takewhile(lambda node: node is not self._root, self._graph.nodes))
        for node in before:
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt) and symbolic_expression(value) == wanted:
                return node
        for node in before:
            value = node.meta.get("val")
            for dim, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
                if isinstance(size, torch.SymInt) and symbolic_expression(size) == wanted:
                    return self.call(torch.ops.aten.sym_size.int, node, dim)
        return None

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        """Insert a call and compute its fake value."""
        args = tuple(self.tensor(a) if isinstance(a, View) else a for a in args)
        kwargs = {n: self.tensor(a) if isinstance(a, View) else a for n, a in kwargs.items()}
        with self._graph.inserting_before(self._root):
            node = self._graph.call_function(target, args, kwargs)
        self.inserted.append(node)
        for key in ("stack_trace", "nn_module_stack", "source_fn_stack"):
            if key in self._root.meta:
                node.meta[key] = self._root.meta[key]
        node.meta["val"] = self._fake(node)
        return node

    def _fake(self, node: fx.Node) -> Any:
        values, named = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        with self._mode or contextlib.nullcontext(), torch.no_grad():
            return fake_call(node.target, values, named)


def _memory_order(tensor: torch.Tensor) -> list[int] | None:
    """The dims from the outermost to the innermost in memory; None where the tensor has gaps."""
    orders = itertools.permutations(range(tensor.dim()))
    return next((list(order) for order in orders if _is_dense(tensor, order)), None)


def _is_dense(tensor: torch.Tensor, order: Sequence[int]) -> bool:
    """Is the tensor, its dims taken in this order, provably contiguous?"""
    stride: Any = 1
    for dim in reversed(order):
        size = tensor.shape[dim]
        alone = isinstance(size, int) and size == 1
        if not alone and prove_equal(tensor.stride(dim), stride, "").verdict is not Verdict.PROVED:
            return False
        stride = stride * size
    return True


class _Namespace:
    def __init__(self, builder: Builder, namespace: Any) -> None:
        self._builder, self._namespace = builder, namespace

    def __getattr__(self, name: str) -> _Packet:
        return _Packet(self._builder, getattr(self._namespace, name))


class _Packet:
    def __init__(self, builder: Builder, packet: Any) -> None:
        self._builder, self._packet = builder, packet

    def __call__(self, *args: Any, **kwargs: Any) -> fx.Node:
        return self._builder.call(self._packet.default, *args, **kwargs)

    def __getattr__(self, overload: str) -> Callable[..., fx.Node]:
        target = getattr(self._packet, overload)
        return lambda *args, **kwargs: self._builder.call(target, *args, **kwargs)
