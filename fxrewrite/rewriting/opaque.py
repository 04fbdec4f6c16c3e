"""Fused operators of other libraries that hide sites: reported, so that nobody wonders where they went."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from ..guards.vocabulary import short
from ..report import Capture, Reason, Site
from .candidates import new_site

# What one call computes inside, by the operator's qualified name.
_HIDDEN: dict[str, tuple[tuple[str, int], ...]] = {
    "aten::_transformer_encoder_layer_fwd": (("sdpa", 1), ("linear", 4)),
    "aten::_native_multi_head_attention": (("sdpa", 1), ("linear", 2)),
    "aten::_scaled_mm": (("fp8_matmul", 1),),
}
_ADVICE = {
    "aten::_transformer_encoder_layer_fwd": "torch.backends.mha.set_fastpath_enabled(False) avoids it",
    "aten::_native_multi_head_attention": "torch.backends.mha.set_fastpath_enabled(False) avoids it",
    "aten::_scaled_mm": "the activations are quantised too (W8A8)",
}


def opaque_sites(graph: fx.Graph) -> list[tuple[fx.Node, Site]]:
    """A rejected site for everything that such an operator computes."""
    sites: list[tuple[fx.Node, Site]] = []
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None or schema.name not in _HIDDEN:
            continue
        for kind, count in _HIDDEN[schema.name]:
            for _ in range(count):
                site = new_site("", kind, node, {})
                site.status, site.code = "rejected", Reason.OPAQUE
                site.detail = f"{schema.name} hides it: {_ADVICE[schema.name]}"
                sites.append((node, site))
    return sites


_CALLS = {F.linear: "linear", F.scaled_dot_product_attention: "sdpa"}


def uncaptured_sites(gm: fx.GraphModule, name: str, problem: str) -> Capture:
    """The calls that can be seen in a Dynamo graph which could not be captured, as rejected sites."""
    sites: list[Site] = []
    for node in gm.graph.nodes:
        kind = _CALLS.get(node.target)
        if kind is None:
            continue
        if kind == "linear" and len(node.args) > 1 and _holds_fp8(node.args[1]):
            kind = "fp8_matmul"
        site = new_site("", kind, node, {})
        site.id, site.status, site.code = f"{name}.{len(sites)}", "rejected", Reason.OPAQUE
        site.detail = f"the graph could not be captured: {problem}"
        sites.append(site)
    return Capture(name=name, nodes=len(gm.graph.nodes), sites=sites)


def _holds_fp8(weight: Any) -> bool:
    """Is the weight a tensor subclass around FP8 numbers?"""
    value: Any = getattr(weight, "meta", {}).get("example_value")
    if not hasattr(value, "__tensor_flatten__"):
        return False
    attributes, _ = value.__tensor_flatten__()
    inner = [getattr(value, name) for name in attributes]
    return any(isinstance(t, torch.Tensor) and short(t.dtype).startswith("float8") for t in inner)
