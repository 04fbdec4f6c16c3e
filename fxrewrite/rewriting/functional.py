"""In-place operators on values that nobody else sees, turned into their functional twins."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ..matching import Aliasing

aten = torch.ops.aten

_FUNCTIONAL: dict[Any, Any] = {
    aten.add_.Tensor: aten.add.Tensor,
    aten.mul_.Tensor: aten.mul.Tensor,
    aten.div_.Tensor: aten.div.Tensor,
    aten.masked_fill_.Scalar: aten.masked_fill.Scalar,
}


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
