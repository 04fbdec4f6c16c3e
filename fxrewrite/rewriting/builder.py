"""The builder: a rule's ``replace`` writes operators with it, and nodes appear in the graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from ..guards.prover import prove_equal
from ..guards.verdict import Verdict
from ..matching.value import View


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
        if wanted.is_contiguous() and not out.meta["val"].is_contiguous():
            out = self.call(torch.ops.aten.clone.default, out, memory_format=torch.contiguous_format)
        return out

    def size(self, size: int | torch.SymInt) -> Any:
        """A size as an argument: an int, or the node that computes the symbolic one."""
        if isinstance(size, int):
            return size
        for node in self._graph.nodes:
            if node is self._root:
                break
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt) and value.node.expr == size.node.expr:
                return node
        for node in self._graph.nodes:
            if node is self._root:
                break
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                for dim, candidate in enumerate(value.shape):
                    if isinstance(candidate, torch.SymInt) and candidate.node.expr == size.node.expr:
                        return self.call(torch.ops.aten.sym_size.int, node, dim)
        raise LookupError(f"no value in the graph has the size {size}")

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
            return node.target(*values, **named)  # type: ignore[operator]  # a call_function


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
