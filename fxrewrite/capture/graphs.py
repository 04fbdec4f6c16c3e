"""Graphs: what hides sites and means nothing removed, and what a graph tells of itself."""

from __future__ import annotations

import operator
from typing import Any, cast

import torch
import torch._dynamo
import torch._guards
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from .symbols import ShapeEnv

aten = torch.ops.aten


def canonical_graph(gm: fx.GraphModule) -> fx.GraphModule:
    """Remove from ``gm``, in place, what hides sites and means nothing."""
    for node in list(gm.graph.nodes):
        # Has no result, and gives every cast a second user.
        if node.target is aten._assert_tensor_metadata.default:
            gm.graph.erase_node(node)
    _inline_regions(gm)
    gm.recompile()
    return gm


def _inline_regions(gm: fx.GraphModule) -> None:
    """Inline the bodies of regions that switch autocast off: they cut sites in half."""
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or getattr(node.target, "__name__", "") != "wrap_with_autocast":
            continue
        _device, _dtype, enabled, _cache, body_ref, *args = node.args
        if enabled:
            continue
        body = cast(fx.GraphModule, getattr(gm, body_ref.target))
        environment = dict(zip(body.graph.find_nodes(op="placeholder"), args, strict=True))
        results: Any = None
        with gm.graph.inserting_before(node):
            for inner in body.graph.nodes:
                if inner.op == "output":
                    results = fx.map_arg(inner.args[0], environment.__getitem__)
                elif inner.op == "get_attr":
                    name = f"{body_ref.target}.{inner.target}"
                    environment[inner] = gm.graph.get_attr(name)
                    environment[inner].meta.update(inner.meta)
                elif inner.op != "placeholder":
                    environment[inner] = gm.graph.node_copy(inner, environment.__getitem__)
        for user in list(node.users):
            if user.target is operator.getitem:
                user.replace_all_uses_with(results[user.args[1]])
                gm.graph.erase_node(user)
        if not isinstance(results, (tuple, list)):
            node.replace_all_uses_with(results)
        gm.graph.erase_node(node)
    gm.graph.lint()


def in_autocast(gm: fx.GraphModule) -> set[fx.Node]:
    """The nodes that autocast changes: those inside of its regions in the graph, or every node where a
    region surrounds the graph.
    """
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return set(gm.graph.nodes)
    inside: set[fx.Node] = set()
    regions: list[dict[str, bool]] = [{}]  # by device: many are there to switch it off, or for another device
    for node in gm.graph.nodes:
        if node.target is torch.amp.autocast_mode._enter_autocast:
            device, enabled = node.args[0], node.args[2] if len(node.args) > 2 else True
            regions.append({**regions[-1], device: bool(enabled)})
        elif node.target is torch.amp.autocast_mode._exit_autocast:
            regions.pop()
        elif any(regions[-1].get(device) for device in _devices(node)):
            inside.add(node)
    return inside


def _devices(node: fx.Node) -> set[str]:
    """The kinds of device of a node's operands."""
    values = (n.meta.get("val") for n in node.all_input_nodes)
    return {value.device.type for value in values if isinstance(value, torch.Tensor)}


def shape_env_of_graph(gm: fx.GraphModule) -> ShapeEnv | None:
    """The ShapeEnv of the values in the graph's metadata, or None."""
    mode = fake_mode_of(gm)
    return None if mode is None else mode.shape_env


def fake_mode_of(gm: fx.GraphModule) -> FakeTensorMode | None:
    """The fake mode that the values in the graph's metadata belong to."""
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, FakeTensor):
            return value.fake_mode
    return None
