"""Integer polynomials over named atoms: the normal form in which the prover compares sizes.

sympy's own expressions are not used for this: expanding them costs milliseconds, and their symbols
carry assumptions (every size is "positive") that do not hold of sizes that may be 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

Monomial = tuple[str, ...]
"""A product of atoms, sorted, with repetition: h²·b is ("b", "h", "h"); the constant's is ()."""


class Polynomial:
    """An immutable sum of monomials with integer coefficients."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms = {monomial: factor for monomial, factor in terms.items() if factor}
        self._hash: int | None = None

    @staticmethod
    def constant(value: int) -> Polynomial:
        return Polynomial({(): value})

    @staticmethod
    def atom(name: str) -> Polynomial:
        return Polynomial({(name,): 1})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Polynomial) and self.terms == other.terms

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self.terms.items()))
        return self._hash

    def __bool__(self) -> bool:
        return bool(self.terms)

    def __neg__(self) -> Polynomial:
        return self * -1

    def __add__(self, other: Polynomial | int) -> Polynomial:
        terms = dict(self.terms)
        for monomial, factor in _terms(other).items():
            terms[monomial] = terms.get(monomial, 0) + factor
        return Polynomial(terms)

    def __sub__(self, other: Polynomial | int) -> Polynomial:
        return self + (-other)

    def __mul__(self, other: Polynomial | int) -> Polynomial:
        if isinstance(other, int):
            return Polynomial({monomial: factor * other for monomial, factor in self.terms.items()})
        terms: dict[Monomial, int] = {}
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                product = tuple(sorted(left + right)) if left and right else left or right
                terms[product] = terms.get(product, 0) + a * b
        return Polynomial(terms)

    def __pow__(self, exponent: int) -> Polynomial:
        out = Polynomial.constant(1)
        for _ in range(exponent):
            out = out * self
        return out

    @property
    def offset(self) -> int:
        """The constant term."""
        return self.terms.get((), 0)

    @property
    def value(self) -> int | None:
        """The number that this is, None where it has atoms."""
        return self.offset if not self.terms or self.terms.keys() == {()} else None

    @property
    def atoms(self) -> frozenset[str]:
        return frozenset(atom for monomial in self.terms for atom in monomial)

    @property
    def content(self) -> int:
        """The greatest common divisor of all coefficients but the constant term's."""
        return math.gcd(*(factor for monomial, factor in self.terms.items() if monomial))

    def varying(self) -> Iterator[tuple[Monomial, int]]:
        """The terms without the constant one."""
        return ((monomial, factor) for monomial, factor in self.terms.items() if monomial)

    def floors(self, divisor: int) -> Polynomial:
        """Each coefficient divided by ``divisor``, rounded down."""
        return Polynomial({monomial: factor // divisor for monomial, factor in self.terms.items()})

    def modulo(self, divisor: int) -> Polynomial:
        """Each coefficient modulo ``divisor``: equal to this polynomial in that residue ring."""
        return Polynomial({monomial: factor % divisor for monomial, factor in self.terms.items()})

    def substituted(self, replacement: Callable[[str], Polynomial | None]) -> Polynomial:
        """With ``replacement(atom)`` in place of each atom for which it is not None."""
        known = {atom: replacement(atom) for atom in self.atoms}
        if all(by is None for by in known.values()):
            return self
        out = Polynomial({})
        for monomial, factor in self.terms.items():
            product = Polynomial.constant(factor)
            for atom in monomial:
                by = known[atom]
                product = product * (Polynomial.atom(atom) if by is None else by)
            out = out + product
        return out

    def __str__(self) -> str:
        parts = []
        for monomial, factor in sorted(self.terms.items(), reverse=True):
            factors = list(monomial) if factor == 1 and monomial else [str(factor), *monomial]
            parts.append("*".join(factors))
        return " + ".join(parts) or "0"

    __repr__ = __str__


def _terms(value: Polynomial | int) -> Mapping[Monomial, int]:
    return value.terms if isinstance(value, Polynomial) else {(): value}


__all__ = ["Monomial", "Polynomial"]
