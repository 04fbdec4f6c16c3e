"""Readings of matrix products, and of the fused calls that hold one."""

from __future__ import annotations

import string
from typing import Any

from torch import fx

from .terms import CallNode, Dims, Term, argument, as_operand, aten, rank_of, reads, shown_plainly
from .transparent import unchanged
from .value import View, is_one, plain, through_broadcast


def _contraction(
    node: fx.Node, dims: Dims, left: tuple[fx.Node, str], right: tuple[fx.Node, str], out: str
) -> list[Term]:
    """Read an einsum of two operands as a matmul, in the order of dims that the view asks for."""
    (a, a_letters), (b, b_letters) = left, right
    shared = set(a_letters) & set(b_letters)
    contracted = [c for c in shared if c not in out]
    rows = [c for c in out if c in a_letters and c not in b_letters]
    columns = [c for c in out if c in b_letters and c not in a_letters]
    wanted = [None if d is None else out[d] for d in dims]
    if len(contracted) != 1 or len(set(a_letters)) != len(a_letters) or len(set(b_letters)) != len(b_letters):
        return []
    if {*a_letters, *b_letters} - {*out} != {*contracted}:  # a dim of one operand alone is summed up
        return []
    if len(wanted) < 2 or wanted[-2] is wanted[-1] is None:
        return []
    batch, (row, column) = wanted[:-2], wanted[-2:]
    if (row is None or row in columns) and (column is None or column in rows):
        (a, a_letters), (b, b_letters) = (b, b_letters), (a, a_letters)
        rows, columns = columns, rows
    # a matrix and a vector: the vector as a matrix of one row or column
    if (row is not None and row not in rows) or (column is not None and column not in columns):
        return []

    def seen(item: fx.Node, letters: str, last: tuple[str | None, str | None]) -> View:
        order = [letters.index(c) if c is not None and c in letters else None for c in (*batch, *last)]
        return View(item, tuple(order))

    k = contracted[0]
    return [Term("matmul", (seen(a, a_letters, (row, k)), seen(b, b_letters, (k, column))))]


def _batch_letters(count: int) -> str:
    return "abcdefgh"[8 - count :]


def _matmul(node: fx.Node, dims: Dims, a: fx.Node, b: fx.Node) -> list[Term]:
    if rank_of(a) < 2 or rank_of(b) < 2:
        return []
    a_letters, b_letters = _batch_letters(rank_of(a) - 2) + "ik", _batch_letters(rank_of(b) - 2) + "kj"
    out = _batch_letters(rank_of(node) - 2) + "ij"
    return _contraction(node, dims, (a, a_letters), (b, b_letters), out)


@reads("matmul linear", aten.matmul.default, aten.bmm.default, aten.mm.default)
def _(node: CallNode, dims: Dims) -> list[Term]:
    a, b = node.args[:2]
    terms = _matmul(node, dims, a, b)
    matrix = _shared_matrix(b)
    if shown_plainly(node, dims) and matrix is not None and rank_of(a) == rank_of(node):
        terms.append(Term("linear", (plain(a), matrix.mT, None)))
    return terms


def _shared_matrix(node: CallNode) -> View | None:
    """The one matrix [K, N] that ``node`` is, or that it repeats for each of its batches."""
    while rank_of(node) > 2:
        if node.target is aten.expand.default:
            source = node.args[0]
            if rank_of(source) == 2 or all(is_one(s) for s in source.meta["val"].shape[:-2]):
                return plain(source).pick(range(rank_of(source))[-2:])
        inner = unchanged(plain(node))
        if inner is None or not inner.is_plain:
            return None
        node = inner.node
    return plain(node) if rank_of(node) == 2 else None


@reads("matmul projection", aten.einsum.default)
def _(node: CallNode, dims: Dims) -> list[Term]:
    spelled = _einsum_of_two(node)
    if spelled is None:
        return []
    left, right, out = spelled
    a, b = node.args[1]
    terms = _contraction(node, dims, (a, left), (b, right), out)
    if shown_plainly(node, dims):
        terms += _projections((plain(a), left), (plain(b), right), out)
    return terms


def product_orders(node: CallNode) -> list[list[int]]:
    """The orders of an einsum's dims in which it is [batch..., rows, columns] of a matrix product, where they
    are not so already: rows from the first operand, then rows from the second."""
    spelled = _einsum_of_two(node) if node.target is aten.einsum.default else None
    if spelled is None:
        return []
    left, right, out = spelled
    letters = range(len(out))
    rows = [i for i in letters if out[i] in left and out[i] not in right]
    columns = [i for i in letters if out[i] in right and out[i] not in left]
    pairs = [pair for row in rows for column in columns for pair in ((row, column), (column, row))]
    orders = [[*(i for i in letters if i not in pair), *pair] for pair in pairs]
    return [order for order in orders if order != list(letters)]


def _einsum_of_two(node: CallNode) -> tuple[str, str, str] | None:
    """The letters of both operands and of the result, ellipses spelled out."""
    equation, operands = node.args[0].replace(" ", ""), node.args[1]
    if len(operands) != 2 or "->" not in equation:
        return None
    inputs, out = equation.split("->")
    left, right = inputs.split(",")
    left, left_rest = _spelled_out(left, rank_of(operands[0]))
    right, right_rest = _spelled_out(right, rank_of(operands[1]))
    return left, right, out.replace("...", max(left_rest, right_rest, key=len))


def _spelled_out(letters: str, rank: int) -> tuple[str, str]:
    """The letters of an operand with its ellipsis, aligned right, spelled out in digits; and these."""
    rest = string.digits[10 - (rank - len(letters) + 3) :] if "..." in letters else ""
    return letters.replace("...", rest), rest


@reads("add linear", aten.addmm.default, aten.baddbmm.default)
def _(node: CallNode, dims: Dims) -> list[Term]:
    base, a, b = node.args[:3]
    beta, alpha = argument(node, 3, "beta", 1), argument(node, 4, "alpha", 1)
    terms: list[Term] = []
    for product in _matmul(node, dims, a, b):
        scaled = product if alpha == 1 else Term("mul", (product, alpha))
        if beta == 0:
            terms.append(scaled)
        else:
            bias = through_broadcast(base, dims, rank_of(node))
            terms.append(Term("add", (scaled, bias if beta == 1 else Term("mul", (bias, beta)))))
    if alpha == beta == 1 and rank_of(b) == 2 and rank_of(base) == 1 and shown_plainly(node, dims):
        terms.append(Term("linear", (plain(a), plain(b).mT, plain(base))))
    return terms


# ---------------------------------------------------------------------------------------- projections


def _projections(left: tuple[View, str], right: tuple[View, str], out: str, bias: Any = None) -> list[Term]:
    """Read a contraction as x with some dims multiplied by a weight: one reading for each operand as x.

    ``kept`` are the dims of x that stay, ``summed`` those that go, in the order in which the
    weight's last dims have them; ``order`` arranges the dims kept and the weight's own as ``out``.
    """
    terms = []
    for (x, x_letters), (w, w_letters) in ((left, right), (right, left)):
        shared = [c for c in w_letters if c in x_letters]
        own = [c for c in w_letters if c not in x_letters]
        kept = [c for c in x_letters if c not in shared]
        if not shared or not own or set(shared) & set(out) or sorted(kept + own) != sorted(out):
            continue
        if len(set(x_letters)) < len(x_letters) or len(set(w_letters)) < len(w_letters):
            continue
        attrs = {
            "kept": [x_letters.index(c) for c in kept],
            "summed": [x_letters.index(c) for c in shared],
            "order": [(kept + own).index(c) for c in out],
            "own": len(own),
        }
        weight = w.pick([w_letters.index(c) for c in (*own, *shared)])
        terms.append(Term("projection", (x, weight, bias), attrs))
    return terms


@reads("projection", aten.tensordot.default)
def _(node: CallNode, dims: Dims) -> list[Term]:
    a, b, over_a, over_b = node.args[:4]
    if not shown_plainly(node, dims):
        return []
    letters = string.ascii_letters
    a_letters = letters[: rank_of(a)]
    b_letters = list(letters[rank_of(a) : rank_of(a) + rank_of(b)])
    for i, j in zip(over_a, over_b, strict=True):
        b_letters[j] = a_letters[i]
    shared = set(a_letters) & set(b_letters)
    out = "".join(c for c in (*a_letters, *b_letters) if c not in shared)
    return _projections((plain(a), a_letters), (plain(b), "".join(b_letters)), out)


@reads("projection", aten.conv1d.default, aten.conv2d.default, aten.conv3d.default)
def _(node: CallNode, dims: Dims) -> list[Term]:
    """A convolution of kernel size 1: a linear layer over the channels."""
    x, weight, bias = node.args[0], node.args[1], argument(node, 2, "bias")
    stride, padding = argument(node, 3, "stride", 1), argument(node, 4, "padding", 0)
    groups = argument(node, 6, "groups", 1)
    spatial = rank_of(weight) - 2
    plainly = {1} >= {*_as_list(stride)} and {0} >= {*_as_list(padding)} and groups == 1
    kernel = weight.meta["val"].shape[2:]
    if not plainly or any(not isinstance(k, int) or k != 1 for k in kernel) or not shown_plainly(node, dims):
        return []
    points = string.ascii_lowercase[:spatial]
    batch = "B" if rank_of(x) == spatial + 2 else ""
    operands = (plain(x), f"{batch}C{points}"), (plain(weight).pick([0, 1]), "NC")
    return _projections(*operands, f"{batch}N{points}", as_operand(bias))[:1]


def _as_list(item: Any) -> list[Any]:
    return list(item) if isinstance(item, (list, tuple)) else [item]


# ------------------------------------------------------------------------------------------ fused calls


@reads("linear", aten.linear.default)
def _(node: CallNode, dims: Dims) -> list[Term]:
    x, weight, bias = node.args[0], node.args[1], argument(node, 2, "bias")
    if not shown_plainly(node, dims) or rank_of(weight) != 2:
        return []
    return [Term("linear", (plain(x), plain(weight), as_operand(bias)))]


@reads("sdpa", aten.scaled_dot_product_attention.default)
def _(node: CallNode, dims: Dims) -> list[Term]:
    if not shown_plainly(node, dims):
        return []
    query, key, value, mask = (
        argument(node, i, n) for i, n in enumerate(("query", "key", "value", "attn_mask"))
    )
    attrs = {
        "dropout": argument(node, 4, "dropout_p", 0.0),
        "is_causal": argument(node, 5, "is_causal", False),
        "scale": node.kwargs.get("scale"),
        "enable_gqa": node.kwargs.get("enable_gqa", False),
    }
    return [Term("sdpa", (plain(query), plain(key), plain(value), as_operand(mask)), attrs)]
