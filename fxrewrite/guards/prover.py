"""The prover: decides conditions on sizes, symbolic ones included, and says what decided them.

It never adds a guard to a ShapeEnv: what it cannot prove from known facts stays UNKNOWN. In order:
ints, identity of polynomials, what is solved for (``s = 32·k``), divisibility of the coefficients,
ranges and known inequalities, residues, trying all values of a small range.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import capture
from .decide import UNDECIDED, Decision, is_at_least_zero, is_multiple, is_zero
from .facts import Facts, facts_of, is_assumed
from .verdict import ASSUMPTION, Judgement, Verdict


def prove_divisible(value: Any, divisor: int, name: str) -> Judgement:
    """Is ``value`` (int or SymInt, called ``name``) a multiple of ``divisor``?"""
    guard = f"{name} % {divisor} == 0"
    if isinstance(value, int):
        rest = value % divisor
        return _decided(guard, rest == 0, "static", f"{name} = {value}: {value} % {divisor} = {rest}")
    expression = capture.symbolic_expression(value)
    decision = _decide(
        ("divisible", expression, divisor), lambda f: is_multiple(f, f.normal(expression), divisor), value
    )
    if decision.holds is False and decision.remainder is not None:
        detail = f"{name} = {capture.expression_text(expression)}: remainder {decision.remainder}"
    else:
        detail = ""
    return _judged(guard, decision, lambda: f"{_operand(expression)} % {divisor} == 0", detail)


def prove_equal(left: Any, right: Any, name: str) -> Judgement:
    """Is ``left`` equal to ``right`` (ints or SymInts)? ``name`` is the condition in words."""
    if isinstance(left, int) and isinstance(right, int):
        return _decided(name, left == right, "static", f"{name}: {left} against {right}")
    a, b = capture.symbolic_expression(left), capture.symbolic_expression(right)
    decision = _decide(("equal", a, b), lambda f: is_zero(f, f.normal(a) - f.normal(b)), left, right)
    return _judged(name, decision, lambda: f"{capture.expression_text(a)} == {capture.expression_text(b)}")


def prove_at_most(value: Any, bound: Any, name: str) -> Judgement:
    """Is ``value`` (int or SymInt, called ``name``) at most ``bound``?"""
    if isinstance(value, int) and isinstance(bound, int):
        return _decided(f"{name} <= {bound}", value <= bound, "static", f"{name} = {value} > {bound}")
    return _prove_order(value, bound, name, "<=")


def prove_at_least(value: Any, bound: Any, name: str) -> Judgement:
    """Is ``value`` (int or SymInt, called ``name``) at least ``bound``?"""
    if isinstance(value, int) and isinstance(bound, int):
        return _decided(f"{name} >= {bound}", value >= bound, "static", f"{name} = {value} < {bound}")
    return _prove_order(value, bound, name, ">=")


def decide(condition: bool, guard: str, detail: str) -> Judgement:
    """A condition that needs no proof (a dtype, a device): PROVED or REFUTED by inspection."""
    return _decided(guard, condition, "static", detail)


def _prove_order(value: Any, bound: Any, name: str, sign: str) -> Judgement:
    a, b = capture.symbolic_expression(value), capture.symbolic_expression(bound)
    large, small = (a, b) if sign == ">=" else (b, a)
    decision = _decide(
        (sign, a, b), lambda f: is_at_least_zero(f, f.normal(large) - f.normal(small)), value, bound
    )
    limit = capture.expression_text(b)
    return _judged(f"{name} {sign} {limit}", decision, lambda: f"{capture.expression_text(a)} {sign} {limit}")


def _decide(question: tuple[Any, ...], ask: Callable[[Facts], Decision], *values: Any) -> Decision:
    """Ask the facts that every run is checked for; then, of an exported program, those assumed besides."""
    environment = capture.shape_env_of(*values)
    if environment is None or None in question:
        return UNDECIDED
    checked, assumed = facts_of(environment)
    expressions = question[1:]
    if not any(is_assumed(environment, e) for e in expressions):
        decision = _asked(checked, question, ask)
        if decision.holds is not None or checked is assumed:
            return decision
    decision = _asked(assumed, question, ask)
    if decision.holds is None:
        return UNDECIDED
    return Decision(decision.holds, ASSUMPTION, decision.remainder)


def _asked(facts: Facts, question: tuple[Any, ...], ask: Callable[[Facts], Decision]) -> Decision:
    known: Decision | None = facts.memo.get(question)
    if known is None:
        known = ask(facts)
        if known.holds is not None and known.evidence in ("identity", "static"):
            rules = [rule for e in question[1:] for rule in facts.used_rules(e)]
            if rules:  # it is plain only after something that is known was put in
                known = Decision(known.holds, rules[0].evidence, known.remainder)
        facts.memo[question] = known
    return known


def _judged(guard: str, decision: Decision, condition: Callable[[], str], detail: str = "") -> Judgement:
    """``condition`` gives the words, which take longer than most proofs: only where they are told."""
    if decision.holds is None:
        return Judgement(guard, Verdict.UNKNOWN, residual=condition())
    residual = condition() if decision.evidence == ASSUMPTION else ""
    if decision.holds:
        return Judgement(guard, Verdict.PROVED, decision.evidence, residual=residual)
    return Judgement(
        guard, Verdict.REFUTED, decision.evidence, detail or f"never true: {condition()}", residual
    )


def _decided(guard: str, holds: bool, evidence: str, detail: str) -> Judgement:
    if holds:
        return Judgement(guard, Verdict.PROVED, evidence)
    return Judgement(guard, Verdict.REFUTED, evidence, detail)


def _operand(expression: Any) -> str:
    text = capture.expression_text(expression)
    return text if text.isidentifier() else f"({text})"
