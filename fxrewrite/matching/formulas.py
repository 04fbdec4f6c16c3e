"""Masks built from index arithmetic: what an element is, as a formula in its indices.

``arange``, comparisons, ``tril`` and lookups by index say what an element is by where it stands. No
element is computed, so a mask of a symbolic size is recognised as one of a fixed size is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from sympy.logic.boolalg import Boolean
from torch import fx

from ..capture import symbolic_expression
from .aliasing import Aliasing
from .elementwise import constant_number
from .terms import CASTS, RESHAPES, CallNode, argument, aten, rank_of
from .transparent import rearranged
from .value import View, is_one, is_tensor, plain

Index = tuple[sympy.Expr, ...]


class NotIndexArithmeticError(Exception):
    """The value depends on an input, or on an operator that has no formula here."""


class Formulas:
    """The formulas of one graph's values."""

    def __init__(self, aliasing: Aliasing) -> None:
        self._aliasing = aliasing
        self._known: dict[tuple[fx.Node, Index], sympy.Basic] = {}

    def of(self, item: Any, index: Sequence[sympy.Expr]) -> Any:
        """What ``item`` (a view, node or number) is at ``index``: a sympy expression or condition.

        Raises `NotIndexArithmeticError` where that cannot be said.
        """
        if isinstance(item, View):
            at = dict(zip(item.dims, index, strict=True))
            return self.of(item.node, [at.get(d, sympy.S.Zero) for d in range(rank_of(item.node))])
        if not isinstance(item, fx.Node):
            return as_formula(item)
        if not is_tensor(item):
            return as_formula(item.meta.get("val"))
        key = (item, tuple(index))
        if key not in self._known:
            self._known[key] = self._here(item, key[1])
        return self._known[key]

    def _here(self, node: CallNode, index: Index) -> Any:
        if self._aliasing.is_mutated(node):
            raise NotIndexArithmeticError(f"{node.name} is written to")
        formula = _FORMULAS.get(node.target)
        if formula is not None:
            return formula(self, node, index)
        inner = rearranged(plain(node))
        if inner is None:
            raise NotIndexArithmeticError(f"{node.name}: {node.target}")
        return self.of(inner, index)

    def broadcast(self, item: Any, index: Index) -> Any:
        """What an operand is where its result, into which it is broadcast, is at ``index``."""
        if not is_tensor(item):
            return self.of(item, ())
        sizes = item.meta["val"].shape
        own = index[len(index) - len(sizes) :]
        return self.of(item, [sympy.S.Zero if is_one(s) else at for s, at in zip(sizes, own, strict=True)])


def as_formula(value: Any) -> Any:
    """A number, boolean or symbolic size as sympy has it."""
    if isinstance(value, bool):
        return sympy.true if value else sympy.false
    if isinstance(value, float):
        if math.isnan(value):
            raise NotIndexArithmeticError("NaN")
        if math.isinf(value):
            return sympy.oo * int(math.copysign(1, value))
        return sympy.Integer(int(value)) if value.is_integer() else sympy.Float(value)
    if isinstance(value, (int, torch.SymInt)):
        return sympy.sympify(symbolic_expression(value))
    raise NotIndexArithmeticError(repr(value))


# ------------------------------------------------------------------------------------------- operators

_FORMULAS: dict[Any, Callable[[Formulas, CallNode, Index], Any]] = {}


def _formula(*targets: Any) -> Callable[[Any], Any]:
    def register(function: Any) -> Any:
        _FORMULAS.update(dict.fromkeys(targets, function))
        return function

    return register


@_formula(aten.arange.default, aten.arange.start, aten.arange.start_step)
def _(f: Formulas, node: CallNode, index: Index) -> Any:
    if node.meta["val"].dtype.is_floating_point:
        raise NotIndexArithmeticError("positions in floating point are rounded")
    numbers = [f.of(a, ()) for a in node.args[:3]]
    start = numbers[0] if len(numbers) > 1 else sympy.S.Zero
    step = numbers[2] if len(numbers) > 2 else sympy.S.One
    return start + step * index[0]


@_formula(aten.ones.default, aten.new_ones.default, aten.ones_like.default)
def _(f: Formulas, node: CallNode, index: Index) -> Any:
    return _constant(node, 1)


@_formula(aten.zeros.default, aten.new_zeros.default, aten.zeros_like.default)
def _(f: Formulas, node: CallNode, index: Index) -> Any:
    return _constant(node, 0)


@_formula(aten.full.default, aten.full_like.default, aten.new_full.default)
def _(f: Formulas, node: CallNode, index: Index) -> Any:
    number = node.args[2] if node.target is aten.new_full.default else node.args[1]
    return _constant(node, number)


@_formula(aten.scalar_tensor.default, aten.lift_fresh_copy.default)
def _(f: Formulas, node: CallNode, index: Index) -> Any:
    return _constant(node, constant_number(node))


def _constant(node: CallNode, number: Any) -> Any:
    if not isinstance(number, (int, float)):
        raise NotIndexArithmeticError(f"{node.name} is filled with {number}")
    boolean = node.meta["val"].dtype == torch.bool
    return as_formula(bool(number) if boolean else number)


@_formula(aten.expand.default, aten.alias.default, aten.clone.default, aten.contiguous.default)
def _(f: Formulas, node: CallNode, index: Index) -> Any:
    return f.broadcast(node.args[0], index)


@_formula(aten.repeat.default)
def _(f: Formulas, node: CallNode, index: Index) -> Any:
    """Only dims of size 1 may be repeated."""
    source, times = node.args
    sizes = source.meta["val"].shape
    if any(not is_one(s) and n != 1 for s, n in zip(sizes, times[len(times) - len(sizes) :], strict=True)):
        raise NotIndexArithmeticError(f"{node.name} repeats positions")
    return f.broadcast(source, index)


@_formula(*RESHAPES)
def _(f: Formulas, node: CallNode, index: Index) -> Any:
    """Only dims of size 1 may come or go."""
    source = node.args[0]
    kept = iter([at for size, at in zip(node.meta["val"].shape, index, strict=True) if not is_one(size)])
    before = [s for s in source.meta["val"].shape if not is_one(s)]
    after = [s for s in node.meta["val"].shape if not is_one(s)]
    if [symbolic_expression(s) for s in before] != [symbolic_expression(s) for s in after]:
        raise NotIndexArithmeticError(f"{node.name} merges or splits dims")
    return f.of(source, [sympy.S.Zero if is_one(s) else next(kept) for s in source.meta["val"].shape])


@_formula(aten.slice.Tensor)
def _(f: Formulas, node: CallNode, index: Index) -> Any:
    dim = argument(node, 1, "dim", 0) % rank_of(node)
    start, step = argument(node, 2, "start") or 0, argument(node, 4, "step", 1)
    if not isinstance(start, int) or start < 0:
        raise NotIndexArithmeticError(f"{node.name} starts at {start}")
    moved = list(index)
    moved[dim] = start + step * index[dim]
    return f.of(node.args[0], moved)


@_formula(aten.select.int)
def _(f: Formulas, node: CallNode, index: Index) -> Any:
    _, dim, at = node.args
    if not isinstance(at, int) or at < 0:
        raise NotIndexArithmeticError(f"{node.name} selects {at}")
    dim %= rank_of(node.args[0])
    return f.of(node.args[0], [*index[:dim], sympy.Integer(at), *index[dim:]])


@_formula(aten.index.Tensor)
def _(f: Formulas, node: CallNode, index: Index) -> Any:
    source, lookups = node.args
    if any(not is_tensor(n) or n.meta["val"].dtype == torch.bool for n in lookups):
        raise NotIndexArithmeticError(f"{node.name} looks up whole dims or by a mask")
    own = rank_of(node) - (rank_of(source) - len(lookups))
    found = [f.broadcast(n, index[:own]) for n in lookups]
    if any(not at.is_nonnegative for at in found):
        raise NotIndexArithmeticError(f"{node.name} may look up from the end")
    return f.of(source, [*found, *index[own:]])


@_formula(aten.diff.default)
def _(f: Formulas, node: CallNode, index: Index) -> Any:
    source, times = node.args[0], argument(node, 1, "n", 1)
    before, after = argument(node, 3, "prepend"), argument(node, 4, "append")
    if times != 1 or after is not None:
        raise NotIndexArithmeticError(f"{node.name}: repeated differences")
    dim = argument(node, 2, "dim", -1) % rank_of(node)

    def at(position: Any) -> Index:
        return (*index[:dim], position, *index[dim + 1 :])

    if before is None:
        return f.of(source, at(index[dim] + 1)) - f.of(source, index)
    if not is_one(before.meta["val"].shape[dim]):
        raise NotIndexArithmeticError(f"{node.name}: more than one element before the first")
    first = f.of(source, at(sympy.S.Zero)) - f.of(before, at(sympy.S.Zero))
    other = f.of(source, index) - f.of(source, at(index[dim] - 1))
    return sympy.Piecewise((first, sympy.Eq(index[dim], 0)), (other, True))


@_formula(aten.cumsum.default)
def _(f: Formulas, node: CallNode, index: Index) -> Any:
    dim = node.args[1] % rank_of(node)
    position = sympy.Dummy("p", integer=True, nonnegative=True)
    item = _number(f.of(node.args[0], (*index[:dim], position, *index[dim + 1 :])))
    if position in item.free_symbols:
        raise NotIndexArithmeticError(f"{node.name} sums up what is not constant")
    return item * (index[dim] + 1)


@_formula(*CASTS)
def _(f: Formulas, node: CallNode, index: Index) -> Any:
    value = f.of(node.args[0], index)
    after, before = node.meta["val"].dtype, node.args[0].meta["val"].dtype
    if after == torch.bool:
        return _truth(value)
    if after.is_floating_point and not before.is_floating_point and before != torch.bool:
        raise NotIndexArithmeticError("positions in floating point are rounded")
    if before.is_floating_point and not after.is_floating_point:
        raise NotIndexArithmeticError(f"{node.name} rounds to integers")
    return value if before != torch.bool else _number(value)


def _binary(operation: Callable[[Any, Any], Any]) -> Callable[[Formulas, CallNode, Index], Any]:
    def formula(f: Formulas, node: CallNode, index: Index) -> Any:
        left, right = (f.broadcast(item, index) for item in node.args[:2])
        if argument(node, 2, "alpha", 1) != 1:
            raise NotIndexArithmeticError(f"{node.name} has an alpha")
        return operation(left, right)

    return formula


def _arithmetic(operation: Callable[[Any, Any], Any]) -> Callable[[Formulas, CallNode, Index], Any]:
    def checked(left: Any, right: Any) -> Any:
        result = operation(left, right)
        if result is sympy.nan:
            raise NotIndexArithmeticError("NaN")
        return result

    return _binary(lambda left, right: _piece_by_piece(checked, left, right))


def _piece_by_piece(operation: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """The operation on numbers that may be defined piece by piece."""
    left, right = _number(left), _number(right)
    if isinstance(left, sympy.Piecewise):
        return _joined([(_piece_by_piece(operation, value, right), when) for value, when in left.args])
    if isinstance(right, sympy.Piecewise):
        return _joined([(_piece_by_piece(operation, left, value), when) for value, when in right.args])
    return operation(left, right)


def _joined(pieces: list[tuple[Any, Any]]) -> Any:
    """Numbers or conditions, each with the condition under which it is taken, the first that holds."""
    if not all(_is_condition(value) for value, _ in pieces):
        return sympy.Piecewise(*pieces)
    (value, when), *others = pieces
    if when == sympy.true or not others:
        return value
    return sympy.Or(sympy.And(when, value), sympy.And(sympy.Not(when), _joined(others)))


def _is_condition(value: Any) -> bool:
    # a sympy.Symbol may stand for either
    return isinstance(value, Boolean) and not isinstance(value, sympy.Expr)


def _number(value: Any) -> Any:
    """A condition as 1 or 0."""
    if not _is_condition(value):
        return value
    if value in (sympy.true, sympy.false):
        return sympy.Integer(1 if value == sympy.true else 0)
    return sympy.Piecewise((sympy.S.One, value), (sympy.S.Zero, True))


def _truth(value: Any) -> Any:
    """A number as the condition that it is not 0."""
    return value if _is_condition(value) else _piece_by_piece(sympy.Ne, value, sympy.S.Zero)


def _comparison(relation: Any) -> Callable[[Formulas, CallNode, Index], Any]:
    return _binary(lambda left, right: _piece_by_piece(relation, left, right))


def _both(operation: Any) -> Callable[[Formulas, CallNode, Index], Any]:
    def formula(f: Formulas, node: CallNode, index: Index) -> Any:
        if node.meta["val"].dtype != torch.bool:
            raise NotIndexArithmeticError(f"{node.name} works on bits")
        return operation(*(f.broadcast(item, index) for item in node.args[: 2 if len(node.args) > 1 else 1]))

    return formula


for _targets, _operation in (
    ((aten.add.Tensor, aten.add.Scalar), lambda a, b: a + b),
    ((aten.sub.Tensor, aten.sub.Scalar), lambda a, b: a - b),
    ((aten.rsub.Scalar, aten.rsub.Tensor), lambda a, b: b - a),
    ((aten.mul.Tensor, aten.mul.Scalar), lambda a, b: a * b),
):
    _formula(*_targets)(_arithmetic(_operation))

for _name, _relation in (
    ("le", sympy.Le),
    ("lt", sympy.Lt),
    ("ge", sympy.Ge),
    ("gt", sympy.Gt),
    ("eq", sympy.Eq),
    ("ne", sympy.Ne),
):
    _packet = getattr(aten, _name)
    _formula(_packet.Tensor, _packet.Scalar)(_comparison(_relation))

for _names, _connective in (
    (("__and__.Tensor", "bitwise_and.Tensor", "logical_and.default"), sympy.And),
    (("__or__.Tensor", "bitwise_or.Tensor", "logical_or.default"), sympy.Or),
    (("bitwise_not.default", "logical_not.default"), sympy.Not),
):
    for _qualified in _names:
        _op, _, _overload = _qualified.partition(".")
        _formula(getattr(getattr(aten, _op), _overload))(_both(_connective))


@_formula(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def _(f: Formulas, node: CallNode, index: Index) -> Any:
    condition, here, there = (f.broadcast(item, index) for item in node.args[:3])
    return _either(node, condition, here, there)


@_formula(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _(f: Formulas, node: CallNode, index: Index) -> Any:
    value, mask, fill = (f.broadcast(item, index) for item in node.args[:3])
    return _either(node, mask, fill, value)


@_formula(aten.tril.default)
def _(f: Formulas, node: CallNode, index: Index) -> Any:
    kept = index[-1] - index[-2] <= f.of(argument(node, 1, "diagonal", 0), ())
    return _either(node, kept, f.of(node.args[0], index), sympy.S.Zero)


@_formula(aten.triu.default)
def _(f: Formulas, node: CallNode, index: Index) -> Any:
    kept = index[-1] - index[-2] >= f.of(argument(node, 1, "diagonal", 0), ())
    return _either(node, kept, f.of(node.args[0], index), sympy.S.Zero)


def _either(node: CallNode, condition: Any, here: Any, there: Any) -> Any:
    if condition in (sympy.true, sympy.false):
        return here if condition == sympy.true else there
    as_kind = _truth if node.meta["val"].dtype == torch.bool else _number
    return _joined([(as_kind(here), condition), (as_kind(there), sympy.true)])
