"""Trying all values: of symbols with small ranges, and of the residues that decide a divisibility."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from .atoms import Atoms, Extremum, Quotient
from .polynomial import Polynomial

# So many combinations are tried: a few hundred microseconds.
ENUMERABLE = 256

Point = dict[str, int]


def divisible_by_residues(atoms: Atoms, value: Polynomial, divisor: int) -> bool | None:
    """Is ``value`` a multiple of ``divisor``: always, never, or (None) not decided by the symbols' residues?

    Whether it is depends on each symbol modulo a period only: ``divisor``, times the divisors of the
    quotients that the symbol stands in.
    """
    periods: dict[str, int] = {}
    names: set[str] = set()
    if not (_periods(atoms, value, divisor, periods) and _symbols(atoms, value, names)):
        return None
    if not periods or math.prod(periods.values()) > ENUMERABLE:
        return None
    # a symbol without a period has factors that are multiples: any value will do
    points = _points({name: range(periods.get(name, 1)) for name in names})
    return _unanimous(atoms, points, lambda point: evaluate(atoms, value, point) % divisor == 0, ())


def by_range(
    atoms: Atoms, values: Sequence[Polynomial], holds: Callable[..., bool], facts: Sequence[Polynomial]
) -> bool | None:
    """Does ``holds(*values)`` hold: always, never, or (None) not decided by trying all values?

    Points at which one of ``facts`` (each at least 0) fails are left out; where none is left
    nothing is decided.
    """
    names: set[str] = set()
    for value in values:
        if not _symbols(atoms, value, names):
            return None
    count = 1
    ranges = {}
    for name in sorted(names):
        low, high = atoms.ranges[name]
        if not (math.isfinite(low) and math.isfinite(high)):
            return None
        ranges[name] = range(int(low), int(high) + 1)
        count *= len(ranges[name])
        if count > ENUMERABLE:
            return None
    relevant = [fact for fact in facts if _within(atoms, fact, names)]
    if not names:
        return None
    return _unanimous(
        atoms,
        _points(ranges),
        lambda point: holds(*(evaluate(atoms, value, point) for value in values)),
        relevant,
    )


def evaluate(atoms: Atoms, value: Polynomial, point: Point) -> int:
    """The value at a point, which gives a number to every symbol and gets those of the other atoms."""
    total = 0
    for monomial, factor in value.terms.items():
        for atom in monomial:
            if atom not in point:
                point[atom] = _evaluate_atom(atoms, atom, point)
            factor *= point[atom]
        total += factor
    return total


def _evaluate_atom(atoms: Atoms, atom: str, point: Point) -> int:
    definition = atoms.definitions[atom]
    if isinstance(definition, Quotient):
        divisor = evaluate(atoms, definition.divisor, point)
        return evaluate(atoms, definition.numerator, point) // divisor
    assert isinstance(definition, Extremum)  # an opaque atom is never evaluated
    return (max if definition.largest else min)(evaluate(atoms, part, point) for part in definition.parts)


def _unanimous(
    atoms: Atoms, points: Iterator[Point], holds: Callable[[Point], bool], facts: Sequence[Polynomial]
) -> bool | None:
    outcome: bool | None = None
    for point in points:
        try:
            if any(evaluate(atoms, fact, point) < 0 for fact in facts):
                continue
            now = holds(point)
        except ZeroDivisionError:  # the program does not get here with these sizes
            continue
        if outcome is None:
            outcome = now
        elif outcome != now:
            return None
    return outcome


def _points(ranges: dict[str, range]) -> Iterator[Point]:
    return (dict(zip(ranges, values, strict=True)) for values in itertools.product(*ranges.values()))


def _periods(atoms: Atoms, value: Polynomial, modulus: int, found: dict[str, int]) -> bool:
    """Collect the periods of the symbols of ``value`` modulo ``modulus``; False where there are none."""
    for atom in value.modulo(modulus).atoms:
        definition = atoms.definitions.get(atom)
        if isinstance(definition, Quotient) and definition.divisor.value is not None:
            if not _periods(atoms, definition.numerator, modulus * definition.divisor.offset, found):
                return False
        elif atom in atoms.definitions:
            return False
        else:
            found[atom] = math.lcm(found.get(atom, 1), modulus)
    return True


def _symbols(atoms: Atoms, value: Polynomial, found: set[str]) -> bool:
    """Collect the symbols below ``value``; False where it holds something opaque."""
    for atom in value.atoms:
        definition = atoms.definitions.get(atom)
        if atom not in atoms.definitions:
            found.add(atom)
            continue
        parts: tuple[Polynomial, ...] = ()
        if isinstance(definition, Quotient):
            parts = (definition.numerator, definition.divisor)
        elif isinstance(definition, Extremum):
            parts = definition.parts
        if not parts or not all(_symbols(atoms, part, found) for part in parts):
            return False
    return True


def _within(atoms: Atoms, value: Polynomial, names: set[str]) -> bool:
    found: set[str] = set()
    return _symbols(atoms, value, found) and found <= names
