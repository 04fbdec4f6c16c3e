"""Readings of what works along one dim: sums and softmax, called or written out."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from typing import Any

from torch import fx

from .terms import CallNode, Dims, Term, argument, aten, dim_in_view, rank_of, readings, reads
from .transparent import rearranged
from .value import View, is_tensor, through_broadcast


@reads("softmax", aten.softmax.int, aten._softmax.default)
def _(node: CallNode, dims: Dims) -> list[Term]:
    dim, x = dim_in_view(node, dims, node.args[1]), node.args[0]
    if dim is None:
        return []
    terms = [Term("softmax", (View(x, dims),), {"dim": dim})]
    shifted = _less_its_maximum(x, node.args[1] % rank_of(node))
    if shifted is not None:  # which the softmax does not see; as a bias the maximum would be used twice
        source, folded = shifted
        terms.insert(0, Term("softmax", (View(source, dims),), {"dim": dim}, folded=folded))
    return terms


@reads("sum", aten.sum.dim_IntList)
def _(node: CallNode, dims: Dims) -> list[Term]:
    return _reduced("sum", node, dims)


@reads("logsumexp", aten.logsumexp.default)
def _(node: CallNode, dims: Dims) -> list[Term]:
    return _reduced("logsumexp", node, dims)


def _reduced(op: str, node: CallNode, dims: Dims) -> list[Term]:
    over, keep = node.args[1], argument(node, 2, "keepdim", False)
    if not over or len(over) != 1:
        return []
    if keep:
        dim = dim_in_view(node, dims, over[0])
        return [] if dim is None else [Term(op, (View(node.args[0], dims),), {"dim": dim})]
    # the dim is gone: any dim that the view inserts may be it
    gone = over[0] % rank_of(node.args[0])
    shifted = [d if d is None or d < gone else d + 1 for d in dims]
    inserted = [position for position, d in enumerate(dims) if d is None]
    return [
        Term(
            op,
            (View(node.args[0], (*shifted[:at], gone, *shifted[at + 1 :])),),
            {"dim": at - len(dims)},
        )
        for at in inserted
    ]


def written_softmax(a: Any, b: Any) -> list[Term]:
    """exp(x - max(x)) / sum(exp(x - max(x))), along one dim. Without the maximum it can overflow."""
    exp, passed = _behind(a)
    return [
        Term("softmax", (x,), {"dim": dim}, (*passed, *folded))
        for summed, x, dim, folded in _sums_of_exponentials(b)
        if summed == exp
    ]


def weighted_mean(a: Any, b: Any) -> list[Term]:
    """(exp(x - max(x)) @ v) / sum(exp(x - max(x))): softmax(x) @ v, divided after the product."""
    terms = []
    for summed, x, dim, folded in _sums_of_exponentials(b):
        for product in readings(a) if dim == -1 and isinstance(a, View) else ():
            exp, passed = _behind(product.args[0])
            if product.op == "matmul" and exp == summed:
                between = (a.node, *product.folded, *passed, *folded)
                terms.append(Term("weighted_mean", (x, product.args[1]), folded=between))
    return terms


def softmax_of_its_logarithm(node: CallNode, dims: Dims) -> list[Term]:
    """exp(log_softmax(x)), or exp(x - logsumexp(x))"""
    log: Any = node.args[0]
    if log.target in (aten.log_softmax.int, aten._log_softmax.default):
        dim = dim_in_view(node, dims, log.args[1])
        return (
            [] if dim is None else [Term("softmax", (View(log.args[0], dims),), {"dim": dim}, folded=(log,))]
        )
    if log.target is not aten.sub.Tensor or argument(log, 2, "alpha", 1) != 1:
        return []
    x, total = (through_broadcast(item, dims, rank_of(log)) for item in log.args[:2])
    return [
        Term("softmax", (x,), term.attrs, folded=(log, *folded))
        for term, folded in _reductions("logsumexp", total)
        if term.args[0] == x
    ]


def _sums_of_exponentials(total: Any) -> Iterator[tuple[View, View, int, tuple[fx.Node, ...]]]:
    """(exp(x - max(x)), x, dim, the nodes between), where ``total`` is the sum of the first along ``dim``."""
    for term, outer in _reductions("sum", total):
        (exp, inner), dim = _behind(term.args[0]), term.attrs["dim"]
        if exp.node.target is not aten.exp.default or exp.dims[dim] is None:
            continue
        shifted = _less_its_maximum(exp.node.args[0], exp.dims[dim])
        if shifted is not None:
            x, folded = shifted
            yield exp, View(x, exp.dims), dim, (exp.node, *inner, *outer, *folded)


def _reductions(op: str, item: Any) -> Iterator[tuple[Term, tuple[fx.Node, ...]]]:
    """The readings of ``item`` as ``op``, and the nodes between."""
    view, passed = _behind(item)
    if isinstance(view, View):
        yield from ((term, (*passed, view.node)) for term in readings(view) if term.op == op)


def _behind(item: Any) -> tuple[Any, tuple[fx.Node, ...]]:
    """``item`` behind rearrangements of its dims, and the nodes that rearrange them."""
    passed: list[fx.Node] = []
    while isinstance(item, View) and (inner := rearranged(item)) is not None:
        passed.append(item.node)
        item = inner
    return item, tuple(passed)


def rescued_softmax(node: CallNode, dims: Dims) -> list[Term]:
    """where(every x is -inf, 0, softmax(x)): what the fused attention is decomposed to."""
    condition, zeros, weights = node.args[:3]
    chain: list[Any] = [condition]  # not(any(not(x == -inf)))
    for target in (aten.logical_not.default, aten.any.dim, aten.logical_not.default):
        if not is_tensor(chain[-1]) or chain[-1].target is not target:
            return []
        chain.append(chain[-1].args[0])
    empty, some = chain[3], chain[1]
    if empty.target is not aten.eq.Scalar or empty.args[1] != -math.inf or not is_tensor(weights):
        return []
    softmax = weights.target in (aten.softmax.int, aten._softmax.default) and weights.args[0] is empty.args[0]
    over = _reduced_dim(some, aten.any.dim)
    filled = is_tensor(zeros) and zeros.target in (aten.full_like.default, aten.full.default)
    zero = zeros.args[1] == 0 if filled else is_tensor(zeros) and zeros.target is aten.zeros_like.default
    if not softmax or not zero or over is None or over != weights.args[1] % rank_of(weights):
        return []
    return [Term("rescued", (View(weights, dims),), folded=(*chain, zeros))]


def _less_its_maximum(node: CallNode, over: int | None) -> tuple[fx.Node, tuple[fx.Node, ...]] | None:
    """(x, the nodes between), where ``node`` is x - max(x) along the dim ``over``, the maximum kept."""
    if node.target is not aten.sub.Tensor or not all(map(is_tensor, node.args[:2])):
        return None
    x, most = node.args[:2]
    folded = [node, most]
    if most.target is aten.detach.default:  # no gradient goes through it, and a site has none
        most = most.args[0]
        folded.append(most)
    if most.target is operator.getitem and most.args[1] == 0:
        most = most.args[0]  # values and indices
        folded.append(most)
    if _reduced_dim(most, aten.amax.default, aten.max.dim) != over or argument(node, 2, "alpha", 1) != 1:
        return None
    return (x, tuple(folded)) if most.args[0] is x else None


def _reduced_dim(node: CallNode, *targets: Any) -> int | None:
    """The one dim that a call of one of ``targets`` reduces and keeps, counted from the start."""
    over = argument(node, 1, "dim")
    over = [over] if isinstance(over, int) else over
    if node.target not in targets or not over or len(over) != 1 or not argument(node, 2, "keepdim", False):
        return None
    return int(over[0]) % rank_of(node.args[0])
