"""What a mask that no input decides lets through: everything, or what a causal one does."""

from __future__ import annotations

import enum
from typing import Any

import sympy
import torch

from ..capture import shape_env_of, symbolic_expression
from .aliasing import Aliasing
from .constants import Constants
from .formulas import Formulas, NotIndexArithmeticError
from .value import View, is_one

Bounds = dict[sympy.Symbol, tuple[Any, Any]]

# What is added to every score does not change their softmax, unless it is so large that it swallows them.
LARGEST_OFFSET = 2.0**14


class MaskKind(enum.Enum):
    """What a mask lets a row of scores see."""

    ALL = "everything"
    CAUSAL = "columns up to its own number"


class Masks:
    """The masks of one graph."""

    def __init__(self, aliasing: Aliasing) -> None:
        self._constants = Constants(aliasing)
        self._formulas = Formulas(aliasing)

    def kind(
        self, mask: View, rows: Any, columns: Any, dropped: float, *, inverted: bool = False
    ) -> MaskKind | None:
        """What ``mask``, broadcast to [..., rows, columns], lets through; None where that is another set.

        A boolean mask lets through what is True (``inverted``: False); one that is added, where it
        is the same everywhere or 0, and nothing where it is at most ``dropped``.
        """
        try:
            found = _by_formula(self._formulas, mask, rows, columns, dropped, inverted)
        except NotIndexArithmeticError:
            found = None
        if found is None and (value := self._constants.value(mask)) is not None:
            found = _by_value(value.logical_not() if inverted else value, rows, columns, dropped)
        return found


# ------------------------------------------------------------------------------------------- by value


def _by_value(mask: torch.Tensor, rows: Any, columns: Any, dropped: float) -> MaskKind | None:
    if mask.dtype == torch.bool:
        seen = mask
    elif (
        mask.numel() and bool((mask == mask.flatten()[0]).all()) and bool(mask.abs().max() <= LARGEST_OFFSET)
    ):
        return MaskKind.ALL
    else:
        seen = mask == 0
        if not bool((seen | (mask <= dropped)).all()):
            return None
    if bool(seen.all()):
        return MaskKind.ALL
    if not isinstance(rows, int) or not isinstance(columns, int):
        return None
    causal = torch.ones(rows, columns, dtype=torch.bool).tril()
    return MaskKind.CAUSAL if bool((seen == causal).all()) else None


# ----------------------------------------------------------------------------------------- by formula


def _by_formula(
    formulas: Formulas, mask: View, rows: Any, columns: Any, dropped: float, inverted: bool
) -> MaskKind | None:
    bounds: Bounds = {}

    def position(name: str, size: Any) -> Any:
        if is_one(size):
            return sympy.S.Zero
        symbol = sympy.Dummy(name, integer=True, nonnegative=True)
        bounds[symbol] = (sympy.S.Zero, symbolic_expression(size) - 1)
        return symbol

    row, column = position("row", rows), position("column", columns)
    index = [position("batch", size) for size in mask.shape[:-2]]
    for size, at in zip(mask.shape[-2:], (row, column)[2 - min(mask.rank, 2) :], strict=True):
        index.append(sympy.S.Zero if is_one(size) else at)
    seen = _seen(formulas.of(mask, index), mask.dtype, dropped)
    if seen is None:
        return None
    _add_sizes(bounds, mask, rows, columns)
    return _classified(sympy.Not(seen) if inverted else seen, row, column, bounds)


def _seen(formula: Any, dtype: torch.dtype, dropped: float) -> Any:
    """The condition under which a score is let through; None where the mask does more than that."""
    if dtype == torch.bool:
        return formula
    if formula.is_number:
        return sympy.true if abs(formula) <= LARGEST_OFFSET else None
    if not isinstance(formula, sympy.Piecewise) or len(formula.args) != 2:
        return None
    (here, condition), (there, _) = formula.args
    if not (here.is_number and there.is_number):
        return None
    if here == 0 and there <= dropped:
        return condition
    return sympy.Not(condition) if there == 0 and here <= dropped else None


def _add_sizes(bounds: Bounds, mask: View, rows: Any, columns: Any) -> None:
    """The known ranges of symbolic sizes."""
    for size in (*mask.shape, rows, columns):
        environment = shape_env_of(size)
        if environment is not None:
            for symbol in symbolic_expression(size).free_symbols:
                known = environment.var_to_range.get(symbol)
                if known is not None:
                    bounds[symbol] = (known.lower, known.upper)


def _classified(seen: Any, row: Any, column: Any, bounds: Bounds) -> MaskKind | None:
    rest = [c for c in sympy.And.make_args(seen) if not _always(c, bounds)]
    if not rest:
        return MaskKind.ALL
    excess = _excess(rest[0]) if len(rest) == 1 else None
    if excess is not None and sympy.expand(excess - (column - row)) == 0:
        return MaskKind.CAUSAL
    return None


def _always(condition: Any, bounds: Bounds) -> bool:
    if condition in (sympy.true, sympy.false):
        return condition is sympy.true
    if isinstance(condition, sympy.Or):
        return any(_always(option, bounds) for option in condition.args)
    excess = _excess(condition)
    most = None if excess is None else _largest(excess, bounds)
    return most is not None and bool(most <= 0)


def _excess(condition: Any) -> Any:
    """e, where the condition between integers is e <= 0; None where it is none of that form."""
    if not isinstance(condition, (sympy.Le, sympy.Lt, sympy.Ge, sympy.Gt)):
        return None
    less, more = condition.lts, condition.gts
    if not (less.is_integer and more.is_integer):
        return None
    return sympy.expand(less - more + (1 if isinstance(condition, (sympy.Lt, sympy.Gt)) else 0))


def _largest(expression: Any, bounds: Bounds) -> Any:
    """The largest value of an affine expression, None where it is not affine or has no bound.

    Positions come before sizes in ``bounds``, since the size bounds the position.
    """
    for symbol, (low, high) in bounds.items():
        factor = expression.coeff(symbol)
        if factor == 0:
            continue
        if not factor.is_number:
            return None
        expression = sympy.expand(expression.subs(symbol, high if factor > 0 else low))
    return expression if expression.is_number and expression.is_finite else None
