"""Tensors filled by two writes, to their even and their odd columns, made functional.

So rotary embeddings are often written::

    out = torch.empty_like(x)
    out[..., 0::2] = a
    out[..., 1::2] = b

It becomes ``torch.stack((a, b), -1).flatten(-2)``: the same numbers, and a form that rules see.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ..guards.prover import prove_equal
from ..guards.verdict import Verdict
from ..matching import Aliasing
from ..matching.terms import operators_of, readings
from ..matching.transparent import float_cast, rearranged, same_sizes, unchanged
from ..matching.value import is_tensor, plain

aten = torch.ops.aten
_EMPTY = (aten.empty_like.default, aten.empty.memory_format, aten.new_empty.default)
_END = 2**62


def functionalize_interleaved(gm: fx.GraphModule) -> None:
    """Rewrite each such tensor that a matrix product takes, in place."""
    candidates = [node for node in gm.graph.nodes if node.target in _EMPTY and _feeds_product(node)]
    if not candidates:
        return
    aliasing = Aliasing(gm.graph)
    for base in candidates:
        writes = _two_writes(base, aliasing)
        if writes is not None:
            _replace(gm.graph, base, writes)
    gm.recompile()


def _feeds_product(node: fx.Node) -> bool:
    """Is it an operand of a product, rearranged or cast at most?"""
    for user in filter(is_tensor, node.users):
        if "matmul" in operators_of(user.target):
            return True
        view = plain(user)
        if (rearranged(view) or unchanged(view) or float_cast(view)) and _feeds_product(user):
            return True
    return False


def _two_writes(base: Any, aliasing: Aliasing) -> list[fx.Node] | None:
    """The two ``copy_`` that fill ``base``, first that of the even columns; None where it is not so."""
    value = base.meta["val"]
    width = value.shape[-1] if value.dim() else 0
    if not isinstance(width, int) or width == 0 or width % 2 or not _row_major(value):
        return None
    found: dict[int, Any] = {}
    for user in base.users:
        start = _columns(user)
        if start is None:
            continue
        (write,) = user.users if len(user.users) == 1 else (None,)
        if start in found or write is None or write.target is not aten.copy_.default or write.users:
            return None
        if write.args[0] is not user or not is_tensor(write.args[1]) or not same_sizes(user, write.args[1]):
            return None
        found[start] = write
    if set(found) != {0, 1}:
        return None
    position = aliasing.position
    first, last = sorted(position[write] for write in found.values())
    spans = (-1, first), (first, last), (last, _END)
    if any(aliasing.written_between(base, *span) is not None for span in spans):
        return None
    parts = {write.args[0] for write in found.values()}
    if any(position[user] < last for user in base.users if user not in parts):
        return None
    return [found[0], found[1]]


def _columns(node: Any) -> int | None:
    """0 where ``node`` is the even columns of its input, 1 where it is the odd ones."""
    if node.target is not aten.slice.Tensor:
        return None
    starts = [term.attrs["start"] for term in readings(plain(node)) if term.op == "every_other"]
    return starts[0] if starts else None


def _row_major(value: torch.Tensor) -> bool:
    expected: Any = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if prove_equal(stride, expected, "").verdict is not Verdict.PROVED:
            return False
        expected = expected * size
    return True


def _replace(graph: fx.Graph, base: Any, writes: list[fx.Node]) -> None:
    value = base.meta["val"]
    users = [user for user in base.users if user not in {write.args[0] for write in writes}]
    after = max(writes, key=list(graph.nodes).index)
    parts: list[Any] = [write.args[1] for write in writes]

    def call(target: Any, *args: Any) -> fx.Node:
        nonlocal after
        with graph.inserting_after(after):
            after = graph.call_function(target, args)
        after.meta.update(base.meta)
        after.meta["val"] = target(*torch.fx.node.map_arg(args, lambda n: n.meta["val"]))
        return after

    if parts[0].meta["val"].dtype != parts[1].meta["val"].dtype:
        parts = [call(aten.to.dtype, part, value.dtype) for part in parts]
    result = call(aten.flatten.using_ints, call(aten.stack.default, parts, -1), -2, -1)
    if result.meta["val"].dtype != value.dtype:
        result = call(aten.to.dtype, result, value.dtype)
    for user in users:
        user.replace_input_with(base, result)
    for write in writes:
        part: Any = write.args[0]
        graph.erase_node(write)
        graph.erase_node(part)
    graph.erase_node(base)
