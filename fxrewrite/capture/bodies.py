"""Bodies of nested compile regions in a trace: written out once, and copied for calls that are alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import (
    disable_proxy_modes_tracing,
    get_proxy_mode,
    get_proxy_slot,
    track_tensor,
)
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from .repeats import Stack, relabelled

_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)


@dataclass(frozen=True)
class _Written:
    """What the trace of a body added to the graph."""

    called: Stack
    operands: tuple[fx.Node | None, ...]
    nodes: tuple[fx.Node, ...]
    results: tuple[tuple[Any, fx.Node | None], ...]
    spec: TreeSpec


class Bodies:
    """The bodies of one trace by ``make_fx``, which is active while methods are called."""

    def __init__(self) -> None:
        self._written: dict[Any, _Written | None] = {}

    def result(
        self, body: fx.GraphModule, operands: Sequence[Any], called: Stack, trace: Callable[[], Any]
    ) -> Any:
        """The result of a call of ``body``. ``trace()`` runs it, and its nodes are added to the graph; where
        it ran on operands alike, copies of its nodes then are.
        """
        tracer: Any = getattr(get_proxy_mode(), "tracer", None)
        key = None if tracer is None or not called else _key(body, operands, tracer)
        if key is None:
            return trace()
        if key in self._written:
            written = self._written[key]
            return trace() if written is None else _copy(written, operands, called, tracer)
        nodes = _nodes_of(operands, tracer)
        last = next(reversed(tracer.graph.nodes))
        result = trace()
        self._written[key] = _written(last, called, operands, nodes, result, tracer)
        return result


def _key(body: fx.GraphModule, operands: Sequence[Any], tracer: Any) -> Any:
    """What the trace of ``body`` depends on; None where that cannot be told."""
    parts: list[Any] = []
    first: dict[int, int] = {}
    for index, value in enumerate(operands):
        if not isinstance(value, torch.Tensor):
            if not isinstance(value, _PLAIN):
                return None
            parts.append((type(value), repr(value)))  # which tells -0.0 from 0.0
            continue
        slot = get_proxy_slot(value, tracer, None)
        # of a constant the tracer knows the value
        if slot is None or slot.constant is not None or is_traceable_wrapper_subclass(value):
            return None
        sizes = (*value.shape, *value.stride(), value.storage_offset())
        if not all(isinstance(size, int) for size in sizes):
            return None
        parts.append(
            (
                first.setdefault(id(value), index),
                *(type(value), sizes, value.dtype, value.device, value.layout),
                *(value.requires_grad, value.is_conj(), value.is_neg()),
            )
        )
    return id(body), _surroundings(), tuple(parts)


def _surroundings() -> Any:
    devices = ("cpu", "cuda")
    return torch.is_grad_enabled(), *(
        (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in devices
    )


def _nodes_of(values: Sequence[Any], tracer: Any) -> tuple[fx.Node | None, ...]:
    return tuple(
        get_proxy_slot(value, tracer).proxy.node if isinstance(value, torch.Tensor) else None
        for value in values
    )


def _written(
    last: fx.Node,
    called: Stack,
    operands: Sequence[Any],
    before: tuple[fx.Node | None, ...],
    result: Any,
    tracer: Any,
) -> _Written | None:
    """What was added after the node ``last``; None where copies would not do."""
    nodes = []
    node = last.next
    while node.op != "root":
        nodes.append(node)
        node = node.next
    known = {*nodes, *before}
    if any(node.op != "call_function" for node in nodes):  # a constant belongs to its trace
        return None
    if any(source not in known for node in nodes for source in node.all_input_nodes):
        return None
    if _nodes_of(operands, tracer) != before:  # an operand is written to: its node is now another
        return None
    flat, spec = tree_flatten(result)
    results: list[tuple[Any, fx.Node | None]] = []
    for value in flat:
        if not isinstance(value, torch.Tensor):
            if not isinstance(value, _PLAIN):
                return None
            results.append((value, None))
            continue
        slot = get_proxy_slot(value, tracer, None)
        if slot is None or slot.constant is not None or slot.proxy.node not in known:
            return None
        results.append((value, slot.proxy.node))
    return _Written(called, before, tuple(nodes), tuple(results), spec)


def _copy(written: _Written, operands: Sequence[Any], called: Stack, tracer: Any) -> Any:
    """Add copies of what was written, for a call on ``operands``; return the call's result."""
    copies: dict[fx.Node, fx.Node] = {}
    tensors: dict[fx.Node, torch.Tensor] = {}  # by the node that was written
    for old, new, value in zip(written.operands, _nodes_of(operands, tracer), operands, strict=True):
        if old is not None and new is not None:
            copies[old], tensors[old] = new, value
    for node in written.nodes:
        copy = copies[node] = tracer.graph.node_copy(node, copies.__getitem__)
        if "nn_module_stack" in copy.meta:
            stack = copy.meta["nn_module_stack"]
            copy.meta["nn_module_stack"] = relabelled(stack, traced=written.called, called=called)
    for value, source in written.results:
        if source is not None and source not in tensors:
            with disable_proxy_modes_tracing():
                tensors[source] = torch.ops.aten.alias.default(value)
            track_tensor(tensors[source], fx.Proxy(copies[source], tracer), constant=None, tracer=tracer)
    results = [value if source is None else tensors[source] for value, source in written.results]
    return tree_unflatten(results, written.spec)
