"""The decisions: is a polynomial zero, at least zero, a multiple? Yes, no, or not known; and by what."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from .enumeration import by_range, divisible_by_residues
from .facts import Facts
from .polynomial import Polynomial

# Sums of so many known inequalities are tried.
COMBINED = 2


@dataclass(frozen=True)
class Decision:
    """``holds``: True, False or None (not decided). ``evidence`` names what decided it.

    ``remainder``: of a refuted divisibility, where it is one number.
    """

    holds: bool | None
    evidence: str = ""
    remainder: int | None = None


UNDECIDED = Decision(None)


def is_zero(facts: Facts, value: Polynomial) -> Decision:
    """Is ``value`` 0, for all sizes?"""
    if value.value is not None:
        return Decision(value.value == 0, "identity" if value.value == 0 else "static")
    reduced = facts.reduced(value)
    if reduced.value is not None:
        return Decision(reduced.value == 0, "replacement")
    if value.offset % value.content:
        return Decision(False, "divisibility")
    low, high = facts.bounds(value)
    if low > 0 or high < 0:
        return Decision(False, "range")
    if value in facts.not_zero:
        return Decision(False, "replacement")
    positive, negative = _at_least(facts, value, 1), _at_least(facts, -value, 1)
    if positive or negative:
        return Decision(False, "range")
    if low == high == 0 or (_at_least(facts, value, 0) and _at_least(facts, -value, 0)):
        return Decision(True, "range")
    holds = by_range(facts, [value], lambda n: n == 0, facts.at_least_zero)
    if holds is None:
        for modulus in (2, 3, 4):  # h² + h == 2·b + 1 has no solution: the left side is even
            if divisible_by_residues(facts, value, modulus) is False:
                return Decision(False, "divisibility")
        return UNDECIDED
    return Decision(holds, "range")


def is_at_least_zero(facts: Facts, value: Polynomial) -> Decision:
    """Is ``value`` at least 0, for all sizes?"""
    if value.value is not None:
        return Decision(value.value >= 0, "static")
    for candidate in dict.fromkeys((value, facts.reduced(value))):
        if _at_least(facts, candidate, 0):
            return Decision(True, "range")
        if _at_least(facts, -candidate, 1):
            return Decision(False, "range")
    holds = by_range(facts, [value], lambda n: n >= 0, facts.at_least_zero)
    return UNDECIDED if holds is None else Decision(holds, "range")


def is_multiple(facts: Facts, value: Polynomial, divisor: int) -> Decision:
    """Is ``value`` a multiple of ``divisor`` (at least 1), for all sizes?"""
    value = facts.reduced(value).modulo(divisor)
    if value.value is not None:
        return Decision(value.value % divisor == 0, "divisibility", value.value % divisor)
    common = math.gcd(value.content, divisor)
    if value.offset % common:
        return Decision(False, "divisibility")
    value, divisor = value.floors(common), divisor // common
    low, high = facts.bounds(value)
    if low > 0 and high < divisor:
        return Decision(False, "range")
    if low == high and math.isfinite(low):
        return Decision(low % divisor == 0, "range")
    holds = divisible_by_residues(facts, value, divisor)
    if holds is not None:
        return Decision(holds, "divisibility")
    holds = by_range(facts, [value], lambda n: n % divisor == 0, facts.at_least_zero)
    return UNDECIDED if holds is None else Decision(holds, "range")


def _at_least(facts: Facts, value: Polynomial, bound: int) -> bool:
    """Do the ranges, or known inequalities added up, show that ``value`` is at least ``bound``?"""
    if facts.bounds(value)[0] >= bound:
        return True
    related = [fact for fact in facts.at_least_zero if not fact.atoms.isdisjoint(value.atoms)]
    for count in range(1, COMBINED + 1):
        for some in itertools.combinations_with_replacement(related, count):
            if facts.bounds(sum(some, Polynomial({})) * -1 + value)[0] >= bound:
                return True
    return False
