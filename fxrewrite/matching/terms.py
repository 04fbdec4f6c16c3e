"""Readings: what a node of the graph means, in few canonical operators.

A node may be read in more than one way (``addmm`` is a ``linear``, and also a matmul plus a bias);
a pattern takes the reading that it asks for. Operators of terms, with their attributes:

    matmul(a, b)                    batch dims broadcast as in torch.matmul
    linear(x, weight, bias|None)    weight as [N, K]
    sdpa(q, k, v, mask|None)        dropout, is_causal, scale, enable_gqa
    softmax(x)                      dim
    add(a, b) mul(a, b) div(a, b)   numbers and tensors; a / 8 is a * 0.125; a * (1 / b) is a / b
    relu(x) cast(x) reciprocal(x)
    sum(x)                          dim; the dim is kept
    pad(x)                          pads: {dim: (before, after)}, value
    slice(x)                        dim, start, end
    masked_fill(x, mask, value) where(condition, a, b)
    reshape(x)
    dropout(x)                      an active one
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import torch
from torch import fx

from ..capture import computing
from .value import View, is_tensor, plain, through_broadcast

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
_READERS: dict[Any, Reader] = {}
OPERATORS: dict[Any, tuple[str, ...]] = {}


def reads(operators: str, *targets: Any) -> Callable[[Reader], Reader]:
    """Decorator: the function reads calls of ``targets`` as these ``operators`` (space-separated)."""

    def register(reader: Reader) -> Reader:
        for target in targets:
            _READERS[target] = reader
            OPERATORS[target] = tuple(operators.split())
        return reader

    return register


def readings(view: View) -> list[Term]:
    """Every reading of a view, the plainest first."""
    reader = _READERS.get(view.node.target)
    return reader(view.node, view.dims) if reader else []


def argument(node: CallNode, index: int, name: str, default: Any = None) -> Any:
    """The value that ``node`` passes for an argument, by position or keyword."""
    if len(node.args) > index:
        return node.args[index]
    return node.kwargs.get(name, default)


def rank_of(node: fx.Node) -> int:
    return int(node.meta["val"].dim())


def _plainly(node: fx.Node, dims: Dims) -> bool:
    return dims == tuple(range(rank_of(node)))


def _operand(item: Any) -> Any:
    return plain(item) if is_tensor(item) else item


# --------------------------------------------------------------------------------------- contractions


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
    if _plainly(node, dims) and rank_of(b) == 2:
        terms.append(Term("linear", (plain(a), plain(b).mT, None)))
    return terms


@reads("matmul", aten.einsum.default)
def _(node: CallNode, dims: Dims) -> list[Term]:
    equation, operands = node.args[0], node.args[1]
    sides = equation.replace(" ", "").split("->")
    if len(operands) != 2 or len(sides) != 2 or "." in equation:
        return []
    left, right = sides[0].split(",")
    return _contraction(node, dims, (operands[0], left), (operands[1], right), sides[1])


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
    if alpha == beta == 1 and rank_of(b) == 2 and rank_of(base) == 1 and _plainly(node, dims):
        terms.append(Term("linear", (plain(a), plain(b).mT, plain(base))))
    return terms


@reads("linear", aten.linear.default)
def _(node: CallNode, dims: Dims) -> list[Term]:
    x, weight, bias = node.args[0], node.args[1], argument(node, 2, "bias")
    if not _plainly(node, dims) or rank_of(weight) != 2:
        return []
    return [Term("linear", (plain(x), plain(weight), _operand(bias)))]


@reads("sdpa", aten.scaled_dot_product_attention.default)
def _(node: CallNode, dims: Dims) -> list[Term]:
    if not _plainly(node, dims):
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
    return [Term("sdpa", (plain(query), plain(key), plain(value), _operand(mask)), attrs)]


# ----------------------------------------------------------------------------------------- elementwise


def _elementwise(node: fx.Node, dims: Dims, *items: Any) -> list[Any]:
    return [through_broadcast(item, dims, rank_of(node)) for item in items]


@reads("add", aten.add.Tensor, aten.add.Scalar)
def _(node: CallNode, dims: Dims) -> list[Term]:
    a, b = _elementwise(node, dims, node.args[0], node.args[1])
    alpha = argument(node, 2, "alpha", 1)
    return [Term("add", (a, b if alpha == 1 else Term("mul", (b, alpha))))]


@reads("sub", aten.sub.Tensor, aten.sub.Scalar)
def _(node: CallNode, dims: Dims) -> list[Term]:
    a, b = _elementwise(node, dims, node.args[0], node.args[1])
    alpha = argument(node, 2, "alpha", 1)
    return [Term("sub", (a, b if alpha == 1 else Term("mul", (b, alpha))))]


@reads("mul div", aten.mul.Tensor, aten.mul.Scalar)
def _(node: CallNode, dims: Dims) -> list[Term]:
    a, b = _elementwise(node, dims, node.args[0], node.args[1])
    terms = [Term("mul", (a, b))]
    for factor, other in ((a, b), (b, a)):
        inverse, folded = _inverted(factor)
        if inverse is not None:
            terms.append(Term("div", (other, inverse), folded=folded))
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


@reads("mul div softmax", aten.div.Tensor, aten.div.Scalar)
def _(node: CallNode, dims: Dims) -> list[Term]:
    a, b = _elementwise(node, dims, node.args[0], node.args[1])
    if isinstance(b, (int, float)):
        return [Term("mul", (a, 1.0 / b))] if b else []
    return [Term("div", (a, b)), *_written_softmax(node, dims)]


def _written_softmax(node: CallNode, dims: Dims) -> list[Term]:
    """exp(x - max(x)) / sum(exp(x - max(x))), along one dim. Without the maximum it can overflow."""
    exp: Any = node.args[0]
    total: Any = node.args[1]
    if not is_tensor(exp) or not is_tensor(total) or exp.target is not aten.exp.default:
        return []
    over = _reduced_dim(total, aten.sum.dim_IntList)
    shifted: CallNode = exp.args[0]
    if total.args[0] is not exp or over is None or shifted.target is not aten.sub.Tensor:
        return []
    x: Any = shifted.args[0]
    most: Any = shifted.args[1]
    folded = [exp, total, shifted, most]
    if is_tensor(most) and most.target is operator.getitem and most.args[1] == 0:
        most = most.args[0]  # values and indices
        folded.append(most)
    if not isinstance(most, fx.Node) or _reduced_dim(most, aten.amax.default, aten.max.dim) != over:
        return []
    dim = _dim_in_view(node, dims, over)
    if dim is None or most.args[0] is not x or not is_tensor(x) or argument(shifted, 2, "alpha", 1) != 1:
        return []
    return [Term("softmax", (View(cast(fx.Node, x), dims),), {"dim": dim}, folded=tuple(folded))]


def _reduced_dim(node: CallNode, *targets: Any) -> int | None:
    """The one dim that a call of one of ``targets`` reduces and keeps, counted from the start."""
    over = argument(node, 1, "dim")
    over = [over] if isinstance(over, int) else over
    if node.target not in targets or not over or len(over) != 1 or not argument(node, 2, "keepdim", False):
        return None
    return int(over[0]) % rank_of(node.args[0])


@reads("relu", aten.relu.default)
def _(node: CallNode, dims: Dims) -> list[Term]:
    return [Term("relu", (View(node.args[0], dims),))]


@reads("relu", aten.clamp_min.default, aten.clamp.default)
def _(node: CallNode, dims: Dims) -> list[Term]:
    low, high = argument(node, 1, "min"), argument(node, 2, "max")
    return [Term("relu", (View(node.args[0], dims),))] if low == 0 and high is None else []


@reads("exp", aten.exp.default)
def _(node: CallNode, dims: Dims) -> list[Term]:
    return [Term("exp", (View(node.args[0], dims),))]


@reads("masked_fill", aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _(node: CallNode, dims: Dims) -> list[Term]:
    x, mask = _elementwise(node, dims, node.args[0], node.args[1])
    value = constant_number(node.args[2])
    return [] if value is None else [Term("masked_fill", (x, mask, value))]


@reads("where", aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf)
def _(node: CallNode, dims: Dims) -> list[Term]:
    condition, a, b = _elementwise(node, dims, *node.args[:3])
    a, b = (
        x if n is None else n
        for x, n in ((a, constant_number(node.args[1])), (b, constant_number(node.args[2])))
    )
    return [Term("where", (condition, a, b))]


def constant_number(item: Any) -> float | None:
    """The number that ``item`` stands for: a number itself, or a tensor of one element filled with one."""
    if isinstance(item, (int, float)):
        return float(item)
    if not is_tensor(item) or any(not isinstance(s, int) or s != 1 for s in item.meta["val"].shape):
        return None
    if item.target not in (aten.full.default, aten.scalar_tensor.default):
        return None
    number = constant_number(item.args[1] if item.target is aten.full.default else item.args[0])
    return None if number is None else rounded(number, item.meta["val"].dtype)


def rounded(number: float, dtype: torch.dtype) -> float:
    """``number`` as a tensor of this dtype holds it: -1e9 is -inf in float16."""
    with computing():
        return float(torch.tensor(number, dtype=torch.float64).to(dtype))


# ----------------------------------------------------------------------------- along one or more dims


def _dim_in_view(node: fx.Node, dims: Dims, dim: int) -> int | None:
    """Where the node's ``dim`` stands in the view, counted from the end; None where it is not shown."""
    wanted = dim % max(rank_of(node), 1)
    return dims.index(wanted) - len(dims) if wanted in dims else None


@reads("softmax", aten.softmax.int, aten._softmax.default)
def _(node: CallNode, dims: Dims) -> list[Term]:
    dim = _dim_in_view(node, dims, node.args[1])
    return [] if dim is None else [Term("softmax", (View(node.args[0], dims),), {"dim": dim})]


@reads("sum", aten.sum.dim_IntList)
def _(node: CallNode, dims: Dims) -> list[Term]:
    over, keep = node.args[1], argument(node, 2, "keepdim", False)
    if not over or len(over) != 1:
        return []
    if keep:
        dim = _dim_in_view(node, dims, over[0])
        return [] if dim is None else [Term("sum", (View(node.args[0], dims),), {"dim": dim})]
    # the dim is gone: any dim that the view inserts may be it
    gone = over[0] % rank_of(node.args[0])
    shifted = [d if d is None or d < gone else d + 1 for d in dims]
    inserted = [position for position, d in enumerate(dims) if d is None]
    return [
        Term(
            "sum",
            (View(node.args[0], (*shifted[:at], gone, *shifted[at + 1 :])),),
            {"dim": at - len(dims)},
        )
        for at in inserted
    ]


@reads("pad", aten.pad.default, aten.constant_pad_nd.default)
def _(node: CallNode, dims: Dims) -> list[Term]:
    pads = node.args[1]
    if node.target is aten.pad.default:
        mode, value = argument(node, 2, "mode", "constant"), argument(node, 3, "value")
    else:
        mode, value = "constant", argument(node, 2, "value", 0)
    found = {}
    for i in range(0, len(pads), 2):
        if (pads[i], pads[i + 1]) != (0, 0):
            dim = _dim_in_view(node, dims, -1 - i // 2)
            if dim is None:
                return []
            found[dim] = (pads[i], pads[i + 1])
    if mode != "constant":
        return []
    return [Term("pad", (View(node.args[0], dims),), {"pads": found, "value": float(value or 0.0)})]


@reads("slice", aten.slice.Tensor)
def _(node: CallNode, dims: Dims) -> list[Term]:
    along = argument(node, 1, "dim", 0)
    dim = _dim_in_view(node, dims, along)
    if dim is None or argument(node, 4, "step", 1) != 1:
        return []
    start, end = argument(node, 2, "start") or 0, argument(node, 3, "end")
    size = node.args[0].meta["val"].shape[along]
    if isinstance(end, int) and end >= (size if isinstance(size, int) else _TO_THE_END):
        end = None
    bounds = [(start, end)]
    if isinstance(size, int):  # each bound can be counted from either side
        starts = _from_both_sides(start, size)
        ends = [None] if end is None else _from_both_sides(end, size)
        bounds += [(s, e) for s in starts for e in ends if (s, e) != (start, end)]
    return [Term("slice", (View(node.args[0], dims),), {"dim": dim, "start": s, "end": e}) for s, e in bounds]


# What `x[1:]` passes for its end.
_TO_THE_END = 2**63 - 1


def _from_both_sides(bound: Any, size: int) -> list[Any]:
    """The same place in a dim of this size, counted from its start and from its end."""
    if not isinstance(bound, int) or not -size <= bound < size:
        return [bound]
    return [bound % size, bound % size - size]


# ------------------------------------------------------------------------------------- shape and dtype

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


@reads("cast", *CASTS)
def _(node: CallNode, dims: Dims) -> list[Term]:
    # `x.to(y)` passes a tensor that only lends its dtype
    return [Term("cast", (View(node.args[0], dims),))]


@reads("reshape", *RESHAPES)
def _(node: CallNode, dims: Dims) -> list[Term]:
    if not _plainly(node, dims):
        return []
    return [Term("reshape", (plain(node.args[0]),), {"to": node.meta["val"].shape})]


@reads("dropout", aten.dropout.default)
def _(node: CallNode, dims: Dims) -> list[Term]:
    return [Term("dropout", (View(node.args[0], dims),))]
