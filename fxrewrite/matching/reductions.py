"""Readings of what works along one dim: sums and softmax, called or written out."""

from __future__ import annotations

import math
import operator
from typing import Any

from torch import fx

from .terms import CallNode, Dims, Term, argument, aten, dim_in_view, rank_of, reads
from .value import View, is_tensor


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


def written_softmax(node: CallNode, dims: Dims) -> list[Term]:
    """exp(x - max(x)) / sum(exp(x - max(x))), along one dim. Without the maximum it can overflow."""
    exp: Any = node.args[0]
    total: Any = node.args[1]
    if not is_tensor(exp) or not is_tensor(total) or exp.target is not aten.exp.default:
        return []
    over = _reduced_dim(total, aten.sum.dim_IntList)
    dim = dim_in_view(node, dims, over) if over is not None else None
    shifted = _less_its_maximum(exp.args[0], over) if total.args[0] is exp else None
    if dim is None or shifted is None:
        return []
    x, folded = shifted
    return [Term("softmax", (View(x, dims),), {"dim": dim}, folded=(exp, total, *folded))]


def softmax_of_its_logarithm(node: CallNode, dims: Dims) -> list[Term]:
    """exp(log_softmax(x))"""
    log: Any = node.args[0]
    if log.target not in (aten.log_softmax.int, aten._log_softmax.default):
        return []
    dim = dim_in_view(node, dims, log.args[1])
    return [] if dim is None else [Term("softmax", (View(log.args[0], dims),), {"dim": dim}, folded=(log,))]


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
