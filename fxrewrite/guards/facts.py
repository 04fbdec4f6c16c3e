"""What is known of the sizes of one ShapeEnv, in the prover's normal form. Nothing is added there."""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import sympy

from .. import capture
from .atoms import Atoms, Quotient, Range
from .polynomial import Monomial, Polynomial


@dataclass(frozen=True)
class Rule:
    """A monomial that equals a polynomial, and what says so: "replacement" or "divisibility"."""

    monomial: Monomial
    value: Polynomial
    evidence: str


class Facts(Atoms):
    """Facts of one ShapeEnv: symbols solved for, ranges, and inequalities.

    ``s % 32 == 0`` becomes the rule s = 32·k with a new symbol k; ``a == b + 1`` becomes a rule too;
    ``a <= b`` becomes the polynomial b - a, which is at least 0.
    """

    def __init__(self, known: capture.ShapeFacts) -> None:
        super().__init__()
        self._known_ranges = known.ranges
        self._normal: dict[Any, Polynomial] = {}
        self.rules: dict[str, Rule] = {}  # by symbol
        self.products: list[Rule] = []  # of monomials that are more than a symbol
        self.at_least_zero: list[Polynomial] = []
        self.not_zero: set[Polynomial] = set()
        self.memo: dict[Any, Any] = {}  # the prover's
        conditions = [part for condition in known.conditions for part in _conjuncts(condition)]
        conditions = [
            c for c in conditions if isinstance(c, sympy.Rel) and all(map(self._is_integer, c.args))
        ]
        equalities = [c for c in conditions if isinstance(c, sympy.Eq)]
        for _ in range(2):  # a later fact may make an earlier one simpler
            for equality in equalities:
                self._add_zero(self.normal(equality.lhs) - self.normal(equality.rhs))
        for condition in conditions:
            if isinstance(condition, sympy.Ne):
                self._add_not_zero(self.normal(condition.lhs) - self.normal(condition.rhs))
            elif isinstance(condition, (sympy.Le, sympy.Lt)):
                gap = self.normal(condition.rhs) - self.normal(condition.lhs)
                self._add_at_least_zero(gap - int(isinstance(condition, sympy.Lt)))
            elif isinstance(condition, (sympy.Ge, sympy.Gt)):
                gap = self.normal(condition.lhs) - self.normal(condition.rhs)
                self._add_at_least_zero(gap - int(isinstance(condition, sympy.Gt)))

    # ------------------------------------------------------------------------------- normal form

    def normal(self, expression: Any) -> Polynomial:
        """A sympy expression, or an int, as a polynomial, with what is solved for put in."""
        if isinstance(expression, int):
            return Polynomial.constant(expression)
        try:
            return self._polynomial(expression)
        except _Fraction:
            return self.opaque(str(expression))

    def _is_integer(self, expression: Any) -> bool:
        try:
            self._polynomial(expression)
        except _Fraction:
            return False
        return True

    def _polynomial(self, expression: Any) -> Polynomial:
        known = self._normal.get(expression)
        if known is None:
            known = self._normal[expression] = self._normalised(expression)
        return known

    def _normalised(self, e: Any) -> Polynomial:
        if e.is_Symbol and e.is_integer:
            rule = self.rules.get(e.name)
            if rule is not None:
                return rule.value
            return self.symbol(e.name, self._known_ranges.get(e.name, (-math.inf, math.inf)))
        if e.is_Integer:
            return Polynomial.constant(int(e))
        if e.is_Add:
            return sum((self._polynomial(part) for part in e.args), Polynomial({}))
        if e.is_Mul:
            out = Polynomial.constant(1)
            for part in e.args:
                out = out * self._polynomial(part)
            return out
        kind = capture.integer_function(e)
        if (e.is_Pow or kind == "power") and e.args[1].is_Integer and 0 <= e.args[1] <= 8:
            return self._polynomial(e.args[0]) ** int(e.args[1])
        if kind == "quotient":
            return self.quotient(*map(self._polynomial, e.args))
        if kind == "remainder":
            numerator, divisor = map(self._polynomial, e.args)
            return numerator - divisor * self.quotient(numerator, divisor)
        if kind in ("largest", "smallest"):
            return self.extremum([self._polynomial(part) for part in e.args], largest=kind == "largest")
        if not e.is_integer:
            raise _Fraction
        return self.opaque(str(e))

    def used_rules(self, expression: Any) -> list[Rule]:
        """The rules of the symbols of a sympy expression."""
        names = [s.name for s in getattr(expression, "free_symbols", ())]
        return [self.rules[name] for name in sorted(names) if name in self.rules]

    def reduced(self, value: Polynomial) -> Polynomial:
        """``value`` with every product that is known put in."""
        for _ in range(8):
            before = value
            for rule in self.products:
                value = _replaced(value, rule)
            if value == before:
                break
        return value

    # ------------------------------------------------------------------------------------- facts

    def _add_zero(self, value: Polynomial) -> None:
        """``value`` is 0."""
        if value.value is not None:  # known already (or contradictory: then nothing runs here)
            return
        found = self._as_multiple(value)
        if found is not None:
            self._add_multiple(*found)
            return
        if self._solve(value, "replacement"):
            return
        common = math.gcd(*value.terms.values())
        value = value.floors(common)
        for fact in (value, -value):
            self._add_at_least_zero(fact)
        self._add_product(value, Polynomial({}), "replacement")

    def _as_multiple(self, value: Polynomial) -> tuple[Polynomial, int] | None:
        """(p, m) where ``value == 0`` says that p is a multiple of m."""
        for monomial, factor in value.varying():
            found = self.definitions.get(monomial[0]) if len(monomial) == 1 else None
            if not isinstance(found, Quotient) or found.divisor.value is None:
                continue
            divisor = found.divisor.offset
            if factor % divisor:
                continue
            times = -factor // divisor
            # value = times·(numerator - divisor·quotient) + offset
            offset = (value + Polynomial({monomial: -factor}) - found.numerator * times).value
            if offset is not None and offset % times == 0:
                return found.numerator + offset // times, divisor
        return None

    def _add_multiple(self, value: Polynomial, divisor: int) -> None:
        """``value`` is a multiple of ``divisor``."""
        common = math.gcd(divisor, *value.terms.values())
        value, divisor = value.floors(common).modulo(divisor // common), divisor // common
        if divisor == 1 or value.value is not None:
            return
        leading = _leading(value)
        if leading is None or math.gcd(value.terms[leading], divisor) != 1:
            return
        inverse = pow(value.terms[leading], -1, divisor)
        value = (value * inverse).modulo(divisor)
        value = Polynomial(
            {m: f - divisor if m != leading and 2 * f > divisor else f for m, f in value.terms.items()}
        )
        low, high = self.bounds(value)
        name = f"k{len(self.rules) + len(self.products)}"
        multiple = self.symbol(name, (_up(low, divisor), _down(high, divisor))) * divisor
        if not self._solve(value - multiple, "divisibility", only=leading):
            self._add_product(value, multiple, "divisibility")

    def _solve(self, value: Polynomial, evidence: str, only: Monomial | None = None) -> bool:
        """Turn ``value == 0`` into a rule for one of its symbols, if one occurs once with factor ±1."""
        for monomial, factor in sorted(value.varying(), reverse=True):
            if len(monomial) != 1 or factor not in (1, -1) or (only is not None and monomial != only):
                continue
            name = monomial[0]
            rest = (value + Polynomial({monomial: -factor})) * -factor
            if name in self.definitions or name in self._symbols_in(rest):
                continue
            low, high = self.ranges[name]
            for other, earlier in self.rules.items():
                self.rules[other] = replace(earlier, value=earlier.value.substituted({name: rest}.get))
            self.rules[name] = Rule(monomial, rest, evidence)
            self._normal.clear()
            for bound in ([rest - int(low)] if math.isfinite(low) else []) + (
                [-rest + int(high)] if math.isfinite(high) else []
            ):
                self._add_at_least_zero(bound)
            return True
        return False

    def _symbols_in(self, value: Polynomial) -> set[str]:
        found: set[str] = set()
        for atom in value.atoms:
            definition = self.definitions.get(atom)
            if atom in self.definitions:
                parts = (
                    (definition.numerator, definition.divisor)
                    if isinstance(definition, Quotient)
                    else definition.parts
                    if definition
                    else ()
                )
                found.update(*(self._symbols_in(part) for part in parts))
            found.add(atom)
        return found

    def _add_product(self, value: Polynomial, multiple: Polynomial, evidence: str) -> None:
        """``value == multiple``: put in for the leading product of ``value``."""
        leading = _leading(value)
        if leading is None or len(leading) < 2 or value.terms[leading] not in (1, -1):
            return
        sign = value.terms[leading]
        rest = value + Polynomial({leading: -sign})
        self.products.append(Rule(leading, (multiple - rest) * sign, evidence))

    def _add_not_zero(self, value: Polynomial) -> None:
        self.not_zero |= {value, -value}
        varying = list(value.varying())
        if len(varying) == 1 and len(varying[0][0]) == 1 and varying[0][1] in (1, -1):
            name, excluded = varying[0][0][0], -value.offset * varying[0][1]
            low, high = self.ranges[name]
            self.tighten(name, (low + (low == excluded), high - (high == excluded)))

    def _add_at_least_zero(self, value: Polynomial) -> None:
        """``value`` is at least 0: narrows a range, or is kept as an inequality."""
        varying = list(value.varying())
        if not varying:
            return
        if len(varying) == 1 and len(varying[0][0]) == 1:
            ((name,), factor) = varying[0]
            if factor > 0:
                self.tighten(name, (-(value.offset // factor), math.inf))
            else:
                self.tighten(name, (-math.inf, value.offset // -factor))
            if name not in self.definitions:
                return
        if self.bounds(value)[0] < 0 and value not in self.at_least_zero:
            self.at_least_zero.append(value)


class _Fraction(Exception):
    """A part of an expression is no integer: products and sums of it are not those of integers."""


def _conjuncts(condition: Any) -> Iterator[Any]:
    if isinstance(condition, sympy.And):
        yield from itertools.chain.from_iterable(map(_conjuncts, condition.args))
    else:
        yield condition


def _leading(value: Polynomial) -> Monomial | None:
    """The largest monomial by degree, then by name."""
    return max((m for m, _ in value.varying()), key=lambda m: (len(m), m), default=None)


def _replaced(value: Polynomial, rule: Rule) -> Polynomial:
    out = Polynomial({})
    for monomial, factor in value.terms.items():
        rest: list[str] | None = list(monomial)
        for atom in rule.monomial:
            if rest is None or atom not in rest:
                rest = None
                break
            rest.remove(atom)
        term = Polynomial({monomial: factor})
        out = out + (term if rest is None else rule.value * Polynomial({tuple(rest): factor}))
    return out


def _up(bound: float, by: int) -> float:
    return bound if math.isinf(bound) else -(-bound // by)


def _down(bound: float, by: int) -> float:
    return bound if math.isinf(bound) else bound // by


# ----------------------------------------------------------------------------------- facts by ShapeEnv


@dataclass(frozen=True)
class Exported:
    """What an exported program checks of its inputs: ``ranges`` by symbol, and nothing of the ``assumed``."""

    ranges: Mapping[str, Range]
    assumed: frozenset[str]


_exported: weakref.WeakKeyDictionary[Any, Exported] = weakref.WeakKeyDictionary()
_facts: weakref.WeakKeyDictionary[Any, tuple[Any, Facts, Facts]] = weakref.WeakKeyDictionary()


def declare_exported(environment: Any, exported: Exported) -> None:
    """Sizes of ``environment`` are those of an exported program, which checks only ``exported``."""
    _exported[environment] = exported
    _facts.pop(environment, None)


def facts_of(environment: Any) -> tuple[Facts, Facts]:
    """The facts that every run is checked for, and those that are assumed besides. Often the same."""
    version = capture.facts_version(environment)
    known = _facts.get(environment)
    if known is None or known[0] != version:
        everything = capture.shape_facts(environment)
        all_facts = checked = Facts(everything)
        exported = _exported.get(environment)
        if exported is not None:
            checked = Facts(capture.ShapeFacts((), exported.ranges))
        known = _facts[environment] = (version, checked, all_facts)
    return known[1], known[2]


def is_assumed(environment: Any, expression: Any) -> bool:
    """Does the expression hold a symbol whose value an exported program does not check?"""
    exported = _exported.get(environment)
    if exported is None:
        return False
    return any(s.name in exported.assumed for s in getattr(expression, "free_symbols", ()))
