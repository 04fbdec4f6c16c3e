"""Readings: what a node of the graph means, in few canonical operators.

A node may be read in more than one way (``addmm`` is a ``linear``, and also a matmul plus a bias);
a pattern takes the reading that it asks for. Operators of terms, with their attributes:

    matmul(a, b)                    batch dims broadcast as in torch.matmul
    linear(x, weight, bias|None)    weight as [N, K]
    projection(x, weight, bias|None)  weight as [N..., K...]; kept, summed, order, own (dims)
    sdpa(q, k, v, mask|None)        dropout, is_causal, scale, enable_gqa
    softmax(x)                      dim
    weighted_mean(x, v)             softmax(x) @ v along the last dim of x, divided after the product
    rescued(p)                      a softmax, 0 where all that it was taken of is -inf
    add(a, b) mul(a, b) div(a, b)   numbers and tensors; a / 8 is a * 0.125; a * (1 / b) is a / b
    relu(x) sigmoid(x) cast(x) reciprocal(x)
    activation(x)                   activation: a name in ops.linear.ACTIVATIONS
    half(x, i)                      the first (0) or second (1) half of x along the last dim
    sum(x) logsumexp(x)             dim; the dim is kept
    pad(x)                          pads: {dim: (before, after)}, value
    slice(x)                        dim, start, end
    masked_fill(x, mask, value) where(condition, a, b)
    regroup(x) reshape(x)           leading dims split or merged; any other change of shape
    every_other(x)                  start: the even (0) or odd (1) elements along the last dim
    interleave(a, b)                a and b in turn along the last dim
    split(x) merge(x)               a matrix seen as blocks, and back: split_sizes, merge_sizes
    dropout(x)                      an active one
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import fx

from .value import View, is_tensor, plain

aten = torch.ops.aten
Dims = tuple[int | None, ...]
# An fx.Node, whose arguments readers know better than their declared type does.
CallNode: TypeAlias = Any


@dataclass(frozen=True)
class Term:
    """An operator applied to operands: views, numbers, None or further terms.

    ``folded`` are further nodes that the reading takes in (the ``reciprocal`` of a division).
    """

    op: str
    args: tuple[Any, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    folded: tuple[fx.Node, ...] = ()


Reader = Callable[[CallNode, Dims], list[Term]]
_READERS: dict[Any, list[Reader]] = {}
OPERATORS: dict[Any, tuple[str, ...]] = {}


def reads(operators: str, *targets: Any) -> Callable[[Reader], Reader]:
    """Decorator: the function reads calls of ``targets`` as these ``operators`` (space-separated)."""

    def register(reader: Reader) -> Reader:
        for target in targets:
            _READERS.setdefault(target, []).append(reader)
            OPERATORS[target] = (*OPERATORS.get(target, ()), *operators.split())
        return reader

    return register


def readings(view: View) -> list[Term]:
    """Every reading of a view, the plainest first."""
    readers = _READERS.get(_key(view.node.target), ())
    return [term for reader in readers for term in reader(view.node, view.dims)]


def operators_of(target: Any) -> tuple[str, ...]:
    """The operators as which calls of ``target`` can be read."""
    return OPERATORS.get(_key(target), ())


def _key(target: Any) -> Any:
    """What readers of calls of ``target`` are registered under: itself, or the name of another library's."""
    foreign = isinstance(target, torch._ops.OpOverload) and target not in _READERS
    return target._schema.name if foreign else target


def argument(node: CallNode, index: int, name: str, default: Any = None) -> Any:
    """The value that ``node`` passes for an argument, by position or keyword."""
    if len(node.args) > index:
        return node.args[index]
    return node.kwargs.get(name, default)


def rank_of(node: fx.Node) -> int:
    return int(node.meta["val"].dim())


def shown_plainly(node: fx.Node, dims: Dims) -> bool:
    return dims == tuple(range(rank_of(node)))


def as_operand(item: Any) -> Any:
    return plain(item) if is_tensor(item) else item


def dim_in_view(node: fx.Node, dims: Dims, dim: int) -> int | None:
    """Where the node's ``dim`` stands in the view, counted from the end; None where it is not shown."""
    wanted = dim % max(rank_of(node), 1)
    return dims.index(wanted) - len(dims) if wanted in dims else None


# Operators that only change dtype or device, and those that only change the shape.
CASTS = (
    aten.to.dtype,
    aten.to.dtype_layout,
    aten.to.device,
    aten.to.other,
    aten._to_copy.default,
    aten.type_as.default,
    torch.ops.prims.convert_element_type.default,
)
RESHAPES = (
    aten.view.default,
    aten.reshape.default,
    aten._unsafe_view.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
)
