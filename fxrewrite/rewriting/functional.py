"""What a graph does without effect, taken out, so that rules see what is computed."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ..matching import Aliasing
from ..matching.terms import OPERATORS

aten = torch.ops.aten

_FUNCTIONAL: dict[Any, Any] = {
    aten.add_.Tensor: aten.add.Tensor,
    aten.mul_.Tensor: aten.mul.Tensor,
    aten.div_.Tensor: aten.div.Tensor,
    aten.masked_fill_.Scalar: aten.masked_fill.Scalar,
    aten.relu_.default: aten.relu.default,
    aten.silu_.default: aten.silu.default,
    aten.gelu_.default: aten.gelu.default,
}


_PRODUCTS = {"linear", "matmul", "projection", "sdpa"}


def simplify(gm: fx.GraphModule) -> None:
    """Take out unused values and needless writes, in place: the same numbers, in a form that rules see."""
    _drop_unused(gm.graph)
    _drop_detach(gm.graph)
    functionalize_fresh_writes(gm)


def _drop_unused(graph: fx.Graph) -> None:
    """Remove calls whose results nobody uses, where nothing but the result can matter.

    Products stay: what the model computes is reported, even if in vain.
    """
    for node in reversed(graph.nodes):
        is_product = not _PRODUCTS.isdisjoint(OPERATORS.get(node.target, ()))
        if not node.users and _only_computes(node) and not is_product:
            graph.erase_node(node)


def _only_computes(node: fx.Node) -> bool:
    """Is the call one of ATen's that writes nothing, draws no random number and checks nothing?"""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten" or node.is_impure():
        return False
    returns_tensor = isinstance(node.meta.get("val"), (torch.Tensor, tuple, list))
    random = torch.Tag.nondeterministic_seeded in target.tags
    return returns_tensor and not random and not target._schema.is_mutable


def _drop_detach(graph: fx.Graph) -> None:
    """``torch.tensor(8.0)`` is captured with a ``detach_()``, a write that changes no number."""
    for node in list(graph.nodes):
        source = node.args[0] if node.target is aten.detach_.default else None
        if isinstance(source, fx.Node) and source.target is aten.lift_fresh_copy.default:
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def functionalize_fresh_writes(gm: fx.GraphModule) -> None:
    """Turn ``scores.div_(8)`` into ``div(scores, 8)`` where ``scores`` was computed here and has no
    views: the same numbers, and a form that rules see.
    """
    candidates = [node for node in gm.graph.nodes if node.target in _FUNCTIONAL]
    if not candidates:
        return
    aliasing = Aliasing(gm.graph)
    for node in candidates:
        written = node.args[0]
        value = node.meta.get("val")
        if not aliasing.is_fresh(written) or not _keeps_layout(node, value):
            continue
        sharers = [n for n in gm.graph.nodes if n is not written and aliasing.storage(n) is written]
        if any(n.target not in _FUNCTIONAL for n in sharers):
            continue
        # readers of the tensor after the write see the new value
        for user in list(written.users):
            if user is not node and aliasing.position[user] > aliasing.position[node]:
                user.replace_input_with(written, node)
        node.target = _FUNCTIONAL[node.target]
        node.meta["val"] = value.clone()  # it has memory of its own now
        aliasing = Aliasing(gm.graph)
    gm.recompile()


def _keeps_layout(node: Any, value: Any) -> bool:
    """Would the functional operator give the same dtype and strides?"""
    source = node.args[0].meta.get("val")
    if not isinstance(value, torch.Tensor) or not isinstance(source, torch.Tensor):
        return False
    others = [
        a.meta["val"]
        for a in node.args[1:]
        if isinstance(a, fx.Node) and isinstance(a.meta.get("val"), torch.Tensor)
    ]
    dtype_kept = all(torch.result_type(source, other) == source.dtype for other in others)
    return dtype_kept and source.is_contiguous()
