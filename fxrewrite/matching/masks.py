"""What a mask that no input decides lets through: everything, up to the diagonal, a window."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from ..capture import shape_env_of, symbolic_expression
from ..guards.facts import facts_of
from .aliasing import Aliasing
from .constants import Constants
from .formulas import Formulas, NotIndexArithmeticError
from .value import View, is_one

Bounds = dict[sympy.Symbol, tuple[Any, Any]]

# What is added to every score does not change their softmax, unless it is so large that it swallows them.
LARGEST_OFFSET = 2.0**14

# A mask of so many elements is computed in less time than a formula for it takes.
QUICK = 1 << 20


@dataclass(frozen=True)
class Visible:
    """What a row of scores sees: with ``causal`` columns up to its own number, of which there are
    ``window`` on either side (0: any number).
    """

    causal: bool = False
    window: int = 0


ALL, CAUSAL = Visible(), Visible(causal=True)


class Masks:
    """The masks of one graph."""

    def __init__(self, aliasing: Aliasing) -> None:
        self._constants = Constants(aliasing)
        self._formulas = Formulas(aliasing)
        self._known: dict[Any, Visible | None] = {}

    def visible(
        self, mask: View, rows: Any, columns: Any, dropped: float, *, inverted: bool = False
    ) -> Visible | None:
        """What ``mask``, broadcast to [..., rows, columns], lets through; None where that is another set.

        A boolean mask lets through what is True (``inverted``: False); one that is added, where it
        is the same everywhere or 0, and nothing where it is at most ``dropped``.
        """
        key = mask, symbolic_expression(rows), symbolic_expression(columns), dropped, inverted
        if key not in self._known:
            self._known[key] = self._classify(mask, rows, columns, dropped, inverted)
        return self._known[key]

    def _classify(
        self, mask: View, rows: Any, columns: Any, dropped: float, inverted: bool
    ) -> Visible | None:
        """By value where that is quick, else by formula, else by value where that can be done at all."""
        by_value = self._constants.is_constant(mask)
        if not by_value or math.prod(mask.shape) > QUICK:
            try:
                found = _by_formula(self._formulas, mask, rows, columns, dropped, inverted)
            except NotIndexArithmeticError:
                found = None
            if found is not None or not by_value:
                return found
        value = self._constants.value(mask)
        return _by_value(value.logical_not() if inverted else value, rows, columns, dropped)


# ------------------------------------------------------------------------------------------- by value


def _by_value(mask: torch.Tensor, rows: Any, columns: Any, dropped: float) -> Visible | None:
    if mask.dtype == torch.bool:
        seen = mask
    elif (
        mask.numel() and bool((mask == mask.flatten()[0]).all()) and bool(mask.abs().max() <= LARGEST_OFFSET)
    ):
        return ALL
    else:
        seen = mask == 0
        if not bool((seen | (mask <= dropped)).all()):
            return None
    if bool(seen.all()):
        return ALL
    if not isinstance(rows, int) or not isinstance(columns, int):
        return None
    candidates = [CAUSAL]
    if rows <= columns:  # else a row far below the last column would see nothing
        widest, first = int(seen.sum(-1).max()), int(seen.reshape(-1, seen.shape[-1])[0].sum())
        candidates += [Visible(causal=True, window=widest), Visible(window=first)]
    return next((c for c in candidates if bool((seen == _band(c, rows, columns)).all())), None)


def _band(visible: Visible, rows: int, columns: int) -> torch.Tensor:
    """[rows, columns], True where a row sees a column."""
    everything = torch.ones(rows, columns, dtype=torch.bool)
    below = everything.tril() if visible.causal else everything
    width = visible.window
    return below.triu(1 - width).tril(width - 1) if width else below


# ----------------------------------------------------------------------------------------- by formula


def _by_formula(
    formulas: Formulas, mask: View, rows: Any, columns: Any, dropped: float, inverted: bool
) -> Visible | None:
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
    return _classified(sympy.Not(seen) if inverted else seen, row, column, (rows, columns), bounds)


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
            checked, _ = facts_of(environment)
            for symbol in symbolic_expression(size).free_symbols:
                low, high = checked.bounds(checked.normal(symbol))
                bounds[symbol] = (sympy.sympify(low), sympy.sympify(high))


def _classified(seen: Any, row: Any, column: Any, sizes: tuple[Any, Any], bounds: Bounds) -> Visible | None:
    rest = [c for c in sympy.And.make_args(seen) if not _always(c, bounds)]
    # a condition is `column - row < ahead` or `row - column < behind`
    ahead: list[Any] = []
    behind: list[Any] = []
    for condition in rest:
        excess = _excess(condition)
        distance = None if excess is None else sympy.expand(excess - (column - row))
        opposite = None if excess is None else sympy.expand(excess - (row - column))
        if distance is not None and distance.is_Integer:
            ahead.append(1 - int(distance))
        elif opposite is not None and opposite.is_Integer:
            behind.append(1 - int(opposite))
        else:
            return None
    if len(ahead) > 1 or len(behind) > 1:
        return None
    if not behind:
        return {(): ALL, (1,): CAUSAL}.get(tuple(ahead))
    # a row far below the last column would see nothing
    rows, columns = map(symbolic_expression, sizes)
    surplus = _largest(sympy.sympify(rows - columns), bounds)
    if surplus is None or surplus > 0 or behind[0] < 1:
        return None
    return Visible(ahead == [1], behind[0]) if ahead in ([1], behind) else None


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
