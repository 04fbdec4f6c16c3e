"""Tensor subclasses that wrap other tensors, as inputs of a graph over the tensors inside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch._dynamo
import torch._guards
from torch import fx
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


class Wrapper:
    """A tensor subclass that wraps other tensors (a quantised weight, say), taken apart."""

    def __init__(self, value: Any) -> None:
        names, self.context = value.__tensor_flatten__()
        self.type, self.size, self.stride = type(value), value.size(), value.stride()
        self.parts: dict[str, Any] = {}
        for name in names:
            part = getattr(value, name)
            self.parts[name] = Wrapper(part) if is_traceable_wrapper_subclass(part) else part

    def tensors(self) -> Iterator[torch.Tensor]:
        """The plain tensors inside, in order."""
        for part in self.parts.values():
            yield from part.tensors() if isinstance(part, Wrapper) else [part]

    def rebuilt(self, tensors: Iterator[Any]) -> Any:
        """The same wrapper around other tensors, taken from ``tensors``."""
        inner = {
            n: p.rebuilt(tensors) if isinstance(p, Wrapper) else next(tensors) for n, p in self.parts.items()
        }
        return self.type.__tensor_unflatten__(inner, self.context, self.size, self.stride)

    def read(self, graph: fx.Graph, wrapper: fx.Node, placeholders: Iterator[fx.Node]) -> None:
        """Replace the placeholders of the tensors inside by nodes that read them from ``wrapper``."""
        for name, part in self.parts.items():
            node = graph.call_function(getattr, (wrapper, name))
            if isinstance(part, Wrapper):
                part.read(graph, node, placeholders)
            else:
                flat = next(placeholders)
                node.meta.update(flat.meta)
                flat.replace_all_uses_with(node)
                graph.erase_node(flat)


def wrap_placeholders(
    traced: fx.GraphModule, examples: Sequence[Any], wrappers: Mapping[int, Wrapper]
) -> None:
    """Give ``traced``, a graph over the tensors inside of wrappers, the wrappers for placeholders."""
    if not wrappers:
        return
    graph = traced.graph
    placeholders = iter(graph.find_nodes(op="placeholder"))
    body = next(n for n in graph.nodes if n.op != "placeholder")
    for index, example in enumerate(examples):
        if index not in wrappers:
            next(placeholders)
            continue
        inside = [next(placeholders) for _ in wrappers[index].tensors()]
        with graph.inserting_before(inside[0]):
            wrapper = graph.placeholder(f"wrapper_{index}")
        wrapper.meta["val"] = example
        with graph.inserting_before(body):
            wrappers[index].read(graph, wrapper, iter(inside))
    traced.recompile()
