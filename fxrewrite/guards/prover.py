"""The prover: decides conditions on sizes, symbolic ones included, and says what decided them.

It never adds a guard to a ShapeEnv: what it cannot prove from known facts stays UNKNOWN.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from .. import capture
from .verdict import Judgement, Verdict

# Ranges with at most this many values are decided by trying each.
ENUMERABLE = 64


def prove_divisible(value: Any, divisor: int, name: str) -> Judgement:
    """Is ``value`` (int or SymInt, called ``name``) a multiple of ``divisor``?"""
    guard = f"{name} % {divisor} == 0"
    if isinstance(value, int):
        rest = value % divisor
        return _decided(guard, rest == 0, "static", f"{name} = {value}: {value} % {divisor} = {rest}")
    expression = capture.symbolic_expression(value)
    if _content(expression, divisor) == 0:
        return Judgement(guard, Verdict.PROVED, "divisibility")
    remainder = _constant_remainder(expression, divisor)
    if remainder is not None:
        return _decided(
            guard, remainder == 0, "divisibility", f"{name} = {expression}: remainder {remainder}"
        )
    return _from_facts(guard, value, value % divisor == 0, sympy.Eq(sympy.Mod(expression, divisor), 0))


def prove_equal(left: Any, right: Any, name: str) -> Judgement:
    """Is ``left`` equal to ``right`` (ints or SymInts)? ``name`` is the condition in words."""
    if isinstance(left, int) and isinstance(right, int):
        return _decided(name, left == right, "static", f"{name}: {left} against {right}")
    difference = capture.symbolic_expression(left) - capture.symbolic_expression(right)
    if sympy.expand(difference) == 0:
        return Judgement(name, Verdict.PROVED, "identity")
    symbolic = left if isinstance(left, torch.SymInt) else right
    condition = sympy.Eq(capture.symbolic_expression(left), capture.symbolic_expression(right))
    return _from_facts(name, symbolic, left == right, condition)


def prove_at_most(value: Any, bound: int, name: str) -> Judgement:
    """Is ``value`` (int or SymInt, called ``name``) at most ``bound``?"""
    guard = f"{name} <= {bound}"
    if isinstance(value, int):
        return _decided(guard, value <= bound, "static", f"{name} = {value} > {bound}")
    return _from_facts(guard, value, value <= bound, capture.symbolic_expression(value) <= bound)


def prove_at_least(value: Any, bound: int, name: str) -> Judgement:
    """Is ``value`` (int or SymInt, called ``name``) at least ``bound``?"""
    guard = f"{name} >= {bound}"
    if isinstance(value, int):
        return _decided(guard, value >= bound, "static", f"{name} = {value} < {bound}")
    return _from_facts(guard, value, value >= bound, capture.symbolic_expression(value) >= bound)


def decide(condition: bool, guard: str, detail: str) -> Judgement:
    """A condition that needs no proof (a dtype, a device): PROVED or REFUTED by inspection."""
    return _decided(guard, condition, "static", detail)


def _decided(guard: str, holds: bool, evidence: str, detail: str) -> Judgement:
    if holds:
        return Judgement(guard, Verdict.PROVED, evidence)
    return Judgement(guard, Verdict.REFUTED, evidence, detail)


def _content(expression: sympy.Expr, divisor: int) -> int:
    """gcd rule: 0 where every term of the expanded polynomial is a multiple of ``divisor``."""
    return _term_gcd(sympy.expand(expression)) % divisor


def _constant_remainder(expression: sympy.Expr, divisor: int) -> int | None:
    """The remainder, where all but the constant term are multiples of ``divisor``."""
    constant, rest = sympy.expand(expression).as_coeff_Add()
    if rest == 0 or not constant.is_Integer or _term_gcd(rest) % divisor:
        return None
    return int(constant) % divisor


@lru_cache(maxsize=4096)
def _term_gcd(expanded: sympy.Expr) -> int:
    coefficients = []
    for term in sympy.Add.make_args(expanded):
        coefficient, rest = term.as_coeff_Mul()
        if not coefficient.is_Integer or not rest.is_integer:
            return 1
        coefficients.append(int(coefficient))
    return math.gcd(*coefficients)


def _from_facts(guard: str, symbolic: torch.SymInt, question: Any, condition: Any) -> Judgement:
    """Ask torch's static knowledge, then try every value of a small range."""
    if statically_known_true(question):
        return Judgement(guard, Verdict.PROVED, "static")
    if statically_known_true(torch.sym_not(question)):
        return Judgement(guard, Verdict.REFUTED, "static", f"never true: {capture.condition_text(condition)}")
    verdict = _enumerate(symbolic, condition)
    if verdict is not None:
        return Judgement(
            guard,
            verdict,
            "range",
            "" if verdict is Verdict.PROVED else f"never true: {capture.condition_text(condition)}",
        )
    return Judgement(guard, Verdict.UNKNOWN, residual=capture.condition_text(condition))


def _enumerate(symbolic: torch.SymInt, condition: Any) -> Verdict | None:
    environment = capture.shape_env_of(symbolic)
    symbols = list(condition.free_symbols)
    if environment is None or len(symbols) != 1:
        return None
    bounds = environment.var_to_range.get(symbols[0])
    if bounds is None or not isinstance(bounds.lower, sympy.Integer):
        return None
    if not isinstance(bounds.upper, sympy.Integer):  # infinity has more than one type, none of them this
        return None
    low, high = int(bounds.lower), int(bounds.upper)
    if high - low >= ENUMERABLE:
        return None
    outcomes = {bool(condition.subs(symbols[0], value)) for value in range(low, high + 1)}
    if outcomes == {True}:
        return Verdict.PROVED
    return Verdict.REFUTED if outcomes == {False} else None
