"""Readings of arithmetic, of masks, and of the operators that act on each element alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from ..capture import computing
from .reductions import rescued_softmax, softmax_of_its_logarithm, weighted_mean, written_softmax
from .terms import CallNode, Dims, Term, argument, aten, rank_of, reads
from .value import View, is_one, is_tensor, through_broadcast


def elementwise(node: fx.Node, dims: Dims, *items: Any) -> list[Any]:
    return [through_broadcast(item, dims, rank_of(node)) for item in items]


@reads("add", aten.add.Tensor, aten.add.Scalar)
def _(node: CallNode, dims: Dims) -> list[Term]:
    a, b = elementwise(node, dims, node.args[0], node.args[1])
    alpha = argument(node, 2, "alpha", 1)
    return [Term("add", (a, b if alpha == 1 else Term("mul", (b, alpha))))]


@reads("sub", aten.sub.Tensor, aten.sub.Scalar)
def _(node: CallNode, dims: Dims) -> list[Term]:
    a, b = elementwise(node, dims, node.args[0], node.args[1])
    alpha = argument(node, 2, "alpha", 1)
    return [Term("sub", (a, b if alpha == 1 else Term("mul", (b, alpha))))]


@reads("mul div weighted_mean", aten.mul.Tensor, aten.mul.Scalar)
def _(node: CallNode, dims: Dims) -> list[Term]:
    a, b = elementwise(node, dims, node.args[0], node.args[1])
    terms = [Term("mul", (a, b))]
    for factor, other in ((a, b), (b, a)):
        inverse, folded = _inverted(factor)
        if inverse is not None:
            terms.append(Term("div", (other, inverse), folded=folded))
            terms += [replace(t, folded=(*folded, *t.folded)) for t in weighted_mean(other, inverse)]
    return terms


def _inverted(factor: Any) -> tuple[View | None, tuple[fx.Node, ...]]:
    """x, where ``factor`` is 1 / x, written as ``reciprocal`` with or without ``* 1.0`` after it."""
    folded: list[fx.Node] = []
    while isinstance(factor, View):
        node: CallNode = factor.node
        folded.append(node)
        if node.target is aten.reciprocal.default:
            return View(node.args[0], factor.dims), tuple(folded)
        if node.target is not aten.mul.Tensor or node.args[1] != 1:
            break
        factor = through_broadcast(node.args[0], factor.dims, rank_of(node))
    return None, ()


@reads("mul div softmax weighted_mean", aten.div.Tensor, aten.div.Scalar)
def _(node: CallNode, dims: Dims) -> list[Term]:
    a, b = elementwise(node, dims, node.args[0], node.args[1])
    if isinstance(b, (int, float)):
        return [Term("mul", (a, 1.0 / b))] if b else []
    return [Term("div", (a, b)), *written_softmax(a, b), *weighted_mean(a, b)]


@reads("relu", aten.relu.default)
def _(node: CallNode, dims: Dims) -> list[Term]:
    return [Term("relu", (View(node.args[0], dims),))]


@reads("relu at_least", aten.clamp_min.default, aten.clamp.default)
def _(node: CallNode, dims: Dims) -> list[Term]:
    low, high = argument(node, 1, "min"), argument(node, 2, "max")
    if high is not None or not isinstance(low, (int, float)):
        return []
    x = View(node.args[0], dims)
    return [Term("at_least", (x, low)), *([Term("relu", (x,))] if low == 0 else [])]


@reads("tanh", aten.tanh.default)
def _(node: CallNode, dims: Dims) -> list[Term]:
    return [Term("tanh", (View(node.args[0], dims),))]


@reads("sigmoid", aten.sigmoid.default)
def _(node: CallNode, dims: Dims) -> list[Term]:
    return [Term("sigmoid", (View(node.args[0], dims),))]


@reads("exp softmax", aten.exp.default)
def _(node: CallNode, dims: Dims) -> list[Term]:
    return [Term("exp", (View(node.args[0], dims),)), *softmax_of_its_logarithm(node, dims)]


@reads("masked_fill", aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _(node: CallNode, dims: Dims) -> list[Term]:
    x, mask = elementwise(node, dims, node.args[0], node.args[1])
    value = constant_number(node.args[2])
    return [] if value is None else [Term("masked_fill", (x, mask, value))]


@reads("where rescued", aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf)
def _(node: CallNode, dims: Dims) -> list[Term]:
    condition, a, b = elementwise(node, dims, *node.args[:3])
    a, b = (
        x if n is None else n
        for x, n in ((a, constant_number(node.args[1])), (b, constant_number(node.args[2])))
    )
    return [Term("where", (condition, a, b)), *rescued_softmax(node, dims)]


def constant_number(item: Any) -> float | None:
    """The number that ``item`` stands for: a number itself, or a tensor of one element filled with one."""
    if isinstance(item, (int, float)):
        return float(item)
    if not is_tensor(item) or any(not is_one(s) for s in item.meta["val"].shape):
        return None
    if item.target is aten.lift_fresh_copy.default:
        return _literal(item.args[0])
    if item.target not in (aten.full.default, aten.scalar_tensor.default):
        return None
    number = constant_number(item.args[1] if item.target is aten.full.default else item.args[0])
    return None if number is None else rounded(number, item.meta["val"].dtype)


def _literal(node: CallNode) -> float | None:
    """The number of ``torch.tensor(number)``, which capture keeps as an attribute of the graph."""
    held = getattr(node.graph.owning_module, str(node.target), None) if node.op == "get_attr" else None
    if not isinstance(held, torch.Tensor) or isinstance(held, FakeTensor):
        return None
    with computing():
        return float(held)


def rounded(number: float, dtype: torch.dtype) -> float:
    """``number`` as a tensor of this dtype holds it: -1e9 is -inf in float16."""
    with computing():
        return float(torch.tensor(number, dtype=torch.float64).to(dtype))
