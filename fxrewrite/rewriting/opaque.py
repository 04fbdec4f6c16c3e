"""Fused operators of other libraries that hide sites: reported, so that nobody wonders where they went."""

from __future__ import annotations

from torch import fx

from ..matching.value import is_tensor
from ..report import Reason, Site
from .candidates import new_site

# What one call computes inside, by the operator's qualified name.
_HIDDEN: dict[str, tuple[tuple[str, int], ...]] = {
    "aten::_transformer_encoder_layer_fwd": (("sdpa", 1), ("linear", 4)),
    "aten::_native_multi_head_attention": (("sdpa", 1), ("linear", 2)),
    "aten::_scaled_mm": (("fp8_matmul", 1),),
    "quanto::qbytes_mm": (("fp8_matmul", 1),),
}
_ADVICE = {
    "aten::_transformer_encoder_layer_fwd": "torch.backends.mha.set_fastpath_enabled(False) avoids it",
    "aten::_native_multi_head_attention": "torch.backends.mha.set_fastpath_enabled(False) avoids it",
    "aten::_scaled_mm": "the activations are quantised too (W8A8)",
    "quanto::qbytes_mm": "quanto multiplies by its own kernel",
}


def opaque_sites(graph: fx.Graph) -> list[tuple[fx.Node, Site]]:
    """A rejected site for everything that such an operator computes."""
    sites: list[tuple[fx.Node, Site]] = []
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None or schema.name not in _HIDDEN or not is_tensor(node):
            continue
        for kind, count in _HIDDEN[schema.name]:
            for _ in range(count):
                site = new_site("", kind, node, {})
                site.status, site.code = "rejected", Reason.OPAQUE
                site.detail = f"{schema.name} hides it: {_ADVICE[schema.name]}"
                sites.append((node, site))
    return sites
