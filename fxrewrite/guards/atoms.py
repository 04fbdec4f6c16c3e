"""Atoms of polynomials: symbols, quotients and extrema, with what is known of their ranges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .polynomial import Polynomial

Range = tuple[float, float]
"""Inclusive bounds: ints, or infinities where there is none."""

EVERYTHING: Range = (-math.inf, math.inf)
# Larger bounds say nothing of sizes, and would overflow beside an infinity.
_HUGE = 1 << 256


@dataclass(frozen=True)
class Quotient:
    """``numerator // divisor``, rounded down."""

    numerator: Polynomial
    divisor: Polynomial


@dataclass(frozen=True)
class Extremum:
    """The largest or the smallest of some polynomials."""

    largest: bool
    parts: tuple[Polynomial, ...]


class Atoms:
    """A namespace of atoms: each has a range; those that are no symbols have a definition.

    Equal names mean equal values: the name of a quotient is its text.
    """

    def __init__(self) -> None:
        self.ranges: dict[str, Range] = {}
        self.definitions: dict[str, Quotient | Extremum | None] = {}
        self._bounds: dict[Polynomial, Range] = {}

    # ------------------------------------------------------------------------------------- making

    def symbol(self, name: str, bounds: Range) -> Polynomial:
        """An integer variable."""
        self.ranges.setdefault(name, bounds)
        return Polynomial.atom(name)

    def opaque(self, text: str) -> Polynomial:
        """An integer of which nothing is known but that equal text means an equal value."""
        name = f"<{text}>"
        self.ranges.setdefault(name, EVERYTHING)
        self.definitions.setdefault(name, None)
        return Polynomial.atom(name)

    def quotient(self, numerator: Polynomial, divisor: Polynomial) -> Polynomial:
        """``numerator // divisor``, rounded down; ``divisor`` is not 0 (the program would have failed)."""
        number = divisor.value
        if number is not None:
            return self._quotient(numerator, number) if number else self.opaque(f"{numerator}//0")
        exact = _exact_quotient(numerator, divisor)
        if exact is not None:
            return exact
        low, high = self.bounds(numerator)
        least, most = self.bounds(divisor)
        bounds = EVERYTHING
        if least >= 1 and low >= 0:
            bounds = (_floor(low, most), _floor(high, least))
        return self._define(f"({numerator})//({divisor})", Quotient(numerator, divisor), bounds)

    def _quotient(self, numerator: Polynomial, divisor: int) -> Polynomial:
        if divisor < 0:
            numerator, divisor = -numerator, -divisor
        whole = numerator.floors(divisor)
        rest = numerator - whole * divisor  # each coefficient in [0, divisor)
        common = math.gcd(rest.content, divisor) if rest.content else divisor
        rest, divisor = rest.floors(common), divisor // common  # the constant's fraction changes nothing
        if divisor == 1:
            return whole + rest
        inner = self._single_quotient(rest)
        if inner is not None:  # (p // a + c) // b = (p + c·a) // (a·b)
            by = inner.divisor.offset
            return whole + self._quotient(inner.numerator + rest.offset * by, by * divisor)
        low, high = self.bounds(rest)
        if math.isfinite(low) and math.isfinite(high) and low // divisor == high // divisor:
            return whole + int(low // divisor)
        bounds = (_floor(low, divisor), _floor(high, divisor))
        quotient = Quotient(rest, Polynomial.constant(divisor))
        return whole + self._define(f"({rest})//{divisor}", quotient, bounds)

    def _single_quotient(self, rest: Polynomial) -> Quotient | None:
        """The quotient q where ``rest`` is q + a number, and q's divisor is a number."""
        varying = dict(rest.varying())
        if len(varying) != 1:
            return None
        (monomial, factor) = next(iter(varying.items()))
        found = self.definitions.get(monomial[0]) if len(monomial) == 1 and factor == 1 else None
        return found if isinstance(found, Quotient) and found.divisor.value is not None else None

    def extremum(self, parts: Sequence[Polynomial], *, largest: bool) -> Polynomial:
        """The largest or smallest of ``parts``; one of them where the ranges tell which."""
        distinct = list(dict.fromkeys(parts))
        kept = [part for part in distinct if not any(self._beats(other, part, largest) for other in distinct)]
        if len(kept) == 1:
            return kept[0]
        ranges = [self.bounds(part) for part in kept]
        choose = max if largest else min
        bounds = (choose(low for low, _ in ranges), choose(high for _, high in ranges))
        name = f"{'max' if largest else 'min'}({', '.join(sorted(map(str, kept)))})"
        return self._define(name, Extremum(largest, tuple(kept)), bounds)

    def _beats(self, one: Polynomial, other: Polynomial, largest: bool) -> bool:
        """Is ``one`` at least as large (as small) as ``other``, always, and more so somewhere?"""
        low, high = self.bounds(one - other if largest else other - one)
        return low >= 0 and high > 0

    def _define(self, name: str, definition: Quotient | Extremum, bounds: Range) -> Polynomial:
        self.ranges.setdefault(name, bounds)
        self.definitions.setdefault(name, definition)
        return Polynomial.atom(name)

    def tighten(self, name: str, bounds: Range) -> None:
        """``bounds`` are known of the atom, beside what is."""
        low, high = self.ranges[name]
        self.ranges[name] = (max(low, bounds[0]), min(high, bounds[1]))
        self._bounds.clear()

    # ------------------------------------------------------------------------------------- bounds

    def bounds(self, value: Polynomial) -> Range:
        """Inclusive bounds of ``value``, not always the narrowest."""
        known = self._bounds.get(value)
        if known is None:
            low, high = self._corner_bounds(value)
            for other in (
                ()
                if self._is_monotone(value)
                else (self._shifted_bounds(value), self._remainder_bounds(value))
            ):
                low, high = max(low, other[0]), min(high, other[1])
            known = self._bounds[value] = (low, high)
        return known

    def _is_monotone(self, value: Polynomial) -> bool:
        """Do all terms grow, or all shrink, with every atom? Then the corners are the bounds."""
        signs = {factor > 0 for _, factor in value.varying()}
        return len(signs) <= 1 and all(self.ranges[atom][0] >= 0 for atom in value.atoms)

    def _corner_bounds(self, value: Polynomial) -> Range:
        """Interval arithmetic, monomial by monomial."""
        low: float = value.offset
        high: float = value.offset
        for monomial, factor in value.varying():
            least, most = self._monomial_bounds(monomial)
            ends = sorted((_product(least, factor), _product(most, factor)))
            low, high = _sum(low, ends[0]), _sum(high, ends[1])
            low = min(low, _HUGE) if low > -_HUGE else -math.inf
            high = max(high, -_HUGE) if high < _HUGE else math.inf
        return low, high

    def _monomial_bounds(self, monomial: tuple[str, ...]) -> Range:
        low: float = 1
        high: float = 1
        ranges = [self.ranges[atom] for atom in monomial]
        if all(least >= 0 for least, _ in ranges):
            for least, most in ranges:
                low, high = _product(low, least), _product(high, most)
            return low, high
        for atom in dict.fromkeys(monomial):
            power = monomial.count(atom)
            least, most = self.ranges[atom]
            ends = [_power(least, power), _power(most, power)]
            if power % 2 == 0 and least <= 0 <= most:
                ends.append(0)
            products = [_product(a, b) for a in (low, high) for b in (min(ends), max(ends))]
            low, high = min(products), max(products)
        return low, high

    def _shifted_bounds(self, value: Polynomial) -> Range:
        """The same with each atom written as its least value plus something: h² - 4h is t² + 4t."""
        least = {atom: self.ranges[atom][0] for atom in value.atoms}
        if all(low == 0 or not math.isfinite(low) for low in least.values()):
            return EVERYTHING
        beyond = Atoms()
        for atom, low in least.items():
            offset = low if math.isfinite(low) else 0
            beyond.ranges[atom] = (least[atom] - offset, self.ranges[atom][1] - offset)
        shifted = value.substituted(
            lambda atom: Polynomial.atom(atom) + (int(least[atom]) if math.isfinite(least[atom]) else 0)
        )
        return beyond._corner_bounds(shifted)

    def _remainder_bounds(self, value: Polynomial) -> Range:
        """The same with p // m written as (p - r) / m, where r is in 0 ... m - 1."""
        quotients: dict[str, Quotient] = {}
        scale = 1
        for monomial in value.terms:
            for atom in monomial:
                found = self.definitions.get(atom)
                if isinstance(found, Quotient) and found.divisor.value is not None:
                    quotients[atom] = found
            below = (quotients[atom].divisor.offset for atom in monomial if atom in quotients)
            scale = math.lcm(scale, math.prod(below))
        if not quotients:
            return EVERYTHING
        scaled = Polynomial({})
        for monomial, factor in (value * scale).terms.items():
            inner = [quotients[atom] for atom in monomial if atom in quotients]
            outer = tuple(atom for atom in monomial if atom not in quotients)
            product = Polynomial({outer: factor // math.prod(q.divisor.offset for q in inner)})
            for q in inner:
                rest = f"({q.numerator})%{q.divisor}"
                self.ranges.setdefault(rest, (0, q.divisor.offset - 1))
                product = product * (q.numerator - Polynomial.atom(rest))
            scaled = scaled + product
        low, high = self.bounds(scaled)  # numerators are less deep: this ends
        return _ceiling(low, scale), _floor(high, scale)


def _exact_quotient(numerator: Polynomial, divisor: Polynomial) -> Polynomial | None:
    """numerator / divisor where the divisor is a single term that divides every term."""
    if len(divisor.terms) != 1:
        return None
    (common, by) = next(iter(divisor.terms.items()))
    terms = {}
    for monomial, factor in numerator.terms.items():
        rest = list(monomial)
        for atom in common:
            if atom not in rest:
                return None
            rest.remove(atom)
        if factor % by:
            return None
        terms[tuple(rest)] = factor // by
    return Polynomial(terms)


def _product(a: float, b: float) -> float:
    if not a or not b:
        return 0
    if math.isinf(a) or math.isinf(b):
        return math.inf if (a > 0) == (b > 0) else -math.inf
    return a * b


def _power(a: float, exponent: int) -> float:
    if math.isinf(a):
        return a if exponent % 2 else math.inf
    return a**exponent


def _sum(a: float, b: float) -> float:
    """Of two bounds of the same side; an int may be too large to be added to an infinity."""
    if math.isinf(a) or math.isinf(b):
        return a if math.isinf(a) else b
    return a + b


def _floor(a: float, by: float) -> float:
    if math.isinf(a):
        return a
    if math.isinf(by):
        return 0 if a >= 0 else -1
    return a // by


def _ceiling(a: float, by: int) -> float:
    return -_floor(-a, by)
