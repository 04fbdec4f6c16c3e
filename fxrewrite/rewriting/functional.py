"""What a graph does without effect, taken out, so that rules see what is computed."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ..matching import Aliasing
from ..matching.terms import OPERATORS, RESHAPES
from .hoisted import hoist_narrowing_casts
from .interleaved import functionalize_interleaved

aten = torch.ops.aten

_FUNCTIONAL: dict[Any, Any] = {
    aten.add_.Tensor: aten.add.Tensor,
    aten.sub_.Tensor: aten.sub.Tensor,
    aten.mul_.Tensor: aten.mul.Tensor,
    aten.div_.Tensor: aten.div.Tensor,
    aten.masked_fill_.Scalar: aten.masked_fill.Scalar,
    aten.exp_.default: aten.exp.default,
    aten.tanh_.default: aten.tanh.default,
    aten.relu_.default: aten.relu.default,
    aten.silu_.default: aten.silu.default,
    aten.gelu_.default: aten.gelu.default,
}


_PRODUCTS = {"linear", "matmul", "projection", "sdpa"}


def simplify(gm: fx.GraphModule) -> None:
    """Take out unused values and needless writes, in place: the same numbers, in a form that rules see."""
    _drop_unused(gm.graph)
    _drop_detach(gm.graph)
    _release_prototypes(gm.graph)
    functionalize_fresh_writes(gm)
    functionalize_interleaved(gm)
    hoist_narrowing_casts(gm)


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


_FILLED: dict[Any, float | None] = {  # with what; None: an argument says it
    aten.new_ones.default: 1,
    aten.new_zeros.default: 0,
    aten.new_full.default: None,
    aten.ones_like.default: 1,
    aten.zeros_like.default: 0,
    aten.full_like.default: None,
}


def _release_prototypes(graph: fx.Graph) -> None:
    """``scores.new_ones(n, n)`` reads no number of ``scores``: as ``full`` it does not even use them."""
    for node in list(graph.nodes):
        if node.target not in _FILLED:
            continue
        value, like = node.meta["val"], node.target.overloadpacket.__name__.endswith("_like")
        sizes = list(value.shape) if like else node.args[1]
        if value.layout is not torch.strided:
            continue
        if like and not (all(isinstance(size, int) for size in sizes) and value.is_contiguous()):
            continue
        number = _FILLED[node.target]
        if number is None:
            number = node.args[1 if like else 2]
        if isinstance(number, fx.Node):
            continue
        with graph.inserting_before(node):
            full = graph.call_function(
                aten.full.default, (sizes, number), {"dtype": value.dtype, "device": value.device}
            )
        full.meta.update(node.meta)
        node.replace_all_uses_with(full)
        graph.erase_node(node)


def functionalize_fresh_writes(gm: fx.GraphModule) -> None:
    """Turn ``scores.div_(8)`` into ``div(scores, 8)`` where ``scores`` was computed here and nothing else
    sees the write: the same numbers, and a form that rules see.

    So too ``w.unflatten(0, (n, 128)).mul_(s)``, a write to all of ``w`` through another shape of it.
    """
    candidates = [node for node in gm.graph.nodes if node.target in _FUNCTIONAL]
    if not candidates:
        return
    aliasing = Aliasing(gm.graph)
    for node in candidates:
        written, value = node.args[0], node.meta.get("val")
        if not _keeps_layout(node, value):
            continue
        views = _whole_views(written)
        base = views[-1]
        if not aliasing.is_fresh(base):
            continue
        sharers = [n for n in gm.graph.nodes if n is not base and aliasing.storage(n) is base]
        position = aliasing.position
        # what is a view of the result, and only read, is one of the new value then
        if any(
            n.target not in _FUNCTIONAL
            and n not in views
            and not (position[n] > position[node] and _is_read(n))
            for n in sharers
        ):
            continue
        later = [
            (view, user)
            for view in views
            for user in view.users
            if user is not node and user not in views and position[user] > position[node]
        ]
        if any(view not in (written, base) for view, _ in later):
            continue
        result = node
        if base is not written:
            with gm.graph.inserting_after(node):
                result = gm.graph.call_function(aten.reshape.default, (node, list(base.meta["val"].shape)))
            result.meta.update(base.meta)
        for view, user in later:  # readers of the tensor after the write see the new value
            user.replace_input_with(view, result if view is base else node)
        node.target = _FUNCTIONAL[node.target]
        node.meta["val"] = value.clone()  # it has memory of its own now
        if result is not node:
            result.meta["val"] = node.meta["val"].view(base.meta["val"].shape)
        aliasing = Aliasing(gm.graph)
    gm.recompile()


def _is_read(node: Any) -> bool:
    """Is the result, by the operator's declaration, a view of its input, and never written to?"""
    schemas = [getattr(n.target, "_schema", None) for n in (node, *node.users)]
    is_view = schemas[0] is not None and any(r.alias_info is not None for r in schemas[0].returns)
    return is_view and not any(schema is not None and schema.is_mutable for schema in schemas)


def _whole_views(node: Any) -> list[Any]:
    """``node`` and what it is a view of, as long as each has all the elements in the same order."""
    views = [node]
    while (source := _whole_view_of(views[-1])) is not None:
        views.append(source)
    return views


def _whole_view_of(node: Any) -> Any:
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    source = node.args[0]
    value, whole = node.meta.get("val"), source.meta.get("val")
    if not isinstance(value, torch.Tensor) or not isinstance(whole, torch.Tensor):
        return None
    if any(not isinstance(size, int) for size in (*value.shape, *whole.shape)):
        return None
    if node.target not in (*RESHAPES, aten.slice.Tensor, aten.alias.default):
        return None
    same = value.numel() == whole.numel() and value.is_contiguous() and whole.is_contiguous()
    return source if same else None


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
    if any(torch.result_type(source, other) != source.dtype for other in others):
        return False
    return source.is_contiguous() or _layout_of_result(node) == source.stride()


def _layout_of_result(node: Any) -> tuple[int, ...] | None:
    """The strides that the functional operator would give its result; None where a size is symbolic."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    sizes = [size for t in args if isinstance(t, torch.Tensor) for size in (*t.shape, *t.stride())]
    if any(not isinstance(size, int) for size in sizes):
        return None
    with torch.no_grad():
        return tuple(_FUNCTIONAL[node.target](*args, **kwargs).stride())
