"""The prover: every proof path, UNKNOWN where nothing decides, and never an unsound verdict."""

from __future__ import annotations

import itertools
import operator

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fxrewrite.guards import Verdict
from fxrewrite.guards.prover import prove_at_least, prove_at_most, prove_divisible, prove_equal
from tests.guards.symbols import Sizes

PROVED, REFUTED, UNKNOWN = Verdict.PROVED, Verdict.REFUTED, Verdict.UNKNOWN


@pytest.fixture
def sizes():
    """Symbols for a test, which must leave the ShapeEnv as it was."""
    made = Sizes()
    made.h, made.b, made.small = made.symbol(6), made.symbol(9), made.symbol(4, 3, 5)
    before = made.facts()
    yield made
    assert made.facts() == before


# ------------------------------------------------------------------------------------------- integers


@pytest.mark.parametrize(
    ("prove", "verdict", "detail"),
    [
        (lambda: prove_divisible(96, 32, "n"), PROVED, ""),
        (lambda: prove_divisible(0, 32, "n"), PROVED, ""),
        (lambda: prove_divisible(80, 32, "n"), REFUTED, "n = 80: 80 % 32 = 16"),
        (lambda: prove_equal(3, 3, "a == b"), PROVED, ""),
        (lambda: prove_equal(3, 4, "a == b"), REFUTED, "a == b: 3 against 4"),
        (lambda: prove_at_most(8, 8, "n"), PROVED, ""),
        (lambda: prove_at_most(9, 8, "n"), REFUTED, "n = 9 > 8"),
        (lambda: prove_at_least(8, 8, "n"), PROVED, ""),
        (lambda: prove_at_least(7, 8, "n"), REFUTED, "n = 7 < 8"),
    ],
)
def test_integers(prove, verdict, detail):
    judgement = prove()
    assert (judgement.verdict, judgement.evidence, judgement.detail) == (verdict, "static", detail)
    assert judgement.residual == ""


def test_the_guard_in_words():
    assert prove_divisible(80, 32, "head_dim").guard == "head_dim % 32 == 0"
    assert prove_at_most(1, 2, "rank").guard == "rank <= 2"
    assert prove_at_least(1, 2, "rank").guard == "rank >= 2"


# -------------------------------------------------------------------------------------------- symbols


@pytest.mark.parametrize(
    ("value", "divisor", "verdict"),
    [
        (lambda z: 32 * z.h, 32, PROVED),
        (lambda z: 64 * z.h + 32, 32, PROVED),
        (lambda z: 32 * z.h * z.b - 96 * z.b, 32, PROVED),
        (lambda z: (z.h + 1) * 32 - 32, 32, PROVED),
        (lambda z: (2 * z.h + 2) * (4 * z.b), 8, PROVED),
        (lambda z: 32 * z.h + 1, 32, REFUTED),
        (lambda z: 32 * z.h - 1, 32, REFUTED),
        (lambda z: 48 * z.h + 16, 32, UNKNOWN),
        (lambda z: 16 * z.h, 32, UNKNOWN),
        (lambda z: z.h, 32, UNKNOWN),
        (lambda z: (32 * z.h) // 32, 32, UNKNOWN),
        (lambda z: 32 * (z.h // 3), 32, PROVED),
    ],
)
def test_divisibility(sizes, value, divisor, verdict):
    judgement = prove_divisible(value(sizes), divisor, "n")
    assert judgement.verdict is verdict
    if verdict is not UNKNOWN:
        assert judgement.evidence == "divisibility"


def test_remainder_in_the_detail(sizes):
    assert prove_divisible(32 * sizes.h + 1, 32, "n").detail.endswith("remainder 1")
    assert prove_divisible(32 * sizes.h - 1, 32, "n").detail.endswith("remainder 31")


def test_identity(sizes):
    h, b = sizes.h, sizes.b
    for left, right in [(h + b, b + h), (h * (b + 1), h * b + h), (h, h), (2 * h - h, h)]:
        assert prove_equal(left, right, "x").evidence == "identity"
    assert prove_equal(h, b, "x").verdict is UNKNOWN


def test_replacement():
    made = Sizes()
    a, b = made.symbol(6), made.symbol(6)
    assert prove_equal(a, b, "a == b").verdict is UNKNOWN
    assert a == b  # as eager code would decide it: from here on a guard of the graph
    before = made.facts()
    assert prove_equal(a, b, "a == b").evidence == "identity"
    assert made.facts() == before


def test_facts_of_the_graph():
    made = Sizes()
    a = made.symbol(64)
    assert a % 32 == 0
    before = made.facts()
    assert prove_divisible(a, 32, "a").verdict is PROVED
    assert made.facts() == before


def test_ranges_decide_bounds(sizes):
    judgement = prove_at_most(sizes.small, 5, "n")
    assert (judgement.verdict, judgement.evidence) == (PROVED, "static")
    assert prove_at_most(sizes.small, 2, "n").verdict is REFUTED
    assert prove_at_least(sizes.small, 3, "n").verdict is PROVED
    assert prove_at_least(sizes.small, 6, "n").verdict is REFUTED
    assert prove_at_most(sizes.h, 64, "n").verdict is UNKNOWN


def test_enumeration_of_a_small_range(sizes):
    n = sizes.small  # 3, 4 or 5
    proved = prove_divisible(n * n + n, 2, "n")
    assert (proved.verdict, proved.evidence) == (PROVED, "range")
    refuted = prove_divisible(n * n + n + 1, 2, "n")
    assert (refuted.verdict, refuted.evidence) == (REFUTED, "range")
    assert refuted.detail.startswith("never true: ")
    assert prove_divisible(n, 2, "n").verdict is UNKNOWN
    assert prove_equal(n * n, n + 2, "n").verdict is REFUTED  # true of 2 only
    assert prove_equal((n - 3) * (n - 4) * (n - 5), 0, "n").verdict is PROVED


def test_a_wide_range_is_not_enumerated(sizes):
    assert prove_divisible(sizes.h * sizes.h + sizes.h, 2, "n").verdict is UNKNOWN


def test_residual_in_words(sizes):
    name = str(sizes.h.node.expr)
    assert prove_divisible(sizes.h, 32, "n").residual == f"({name} % 32) == 0"
    assert prove_at_most(sizes.h, 64, "n").residual == f"{name} <= 64"
    residual = prove_equal(sizes.h, sizes.b, "n").residual
    assert residual in (f"{name} == {sizes.b.node.expr}", f"{sizes.b.node.expr} == {name}")


def test_hints_decide_nothing(sizes):
    """The example's size is 6: no reason to believe that it always is."""
    assert prove_equal(sizes.h, 6, "n").verdict is UNKNOWN
    assert prove_divisible(sizes.h, 3, "n").verdict is UNKNOWN
    assert prove_at_least(sizes.h, 6, "n").verdict is UNKNOWN


# --------------------------------------------------------------------------- soundness by brute force

RANGES = ((2, 5), (1, 9), (1, 4))  # torch takes backed symbols for positive
leaf = st.one_of(st.integers(-4, 40), st.sampled_from(["s0", "s1", "s2"]))
expressions = st.recursive(
    leaf,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from("+-**"), inner, inner),
        st.tuples(st.sampled_from(["//", "%"]), inner, st.integers(2, 8)),
    ),
    max_leaves=6,
)
questions = st.one_of(
    st.tuples(st.just("divisible"), st.sampled_from([2, 3, 4, 8, 16, 32])),
    st.tuples(st.sampled_from(["equal", "at_most", "at_least"]), st.integers(-4, 40)),
    st.tuples(st.just("equal"), expressions),
)


def evaluate(expression, symbols):
    if isinstance(expression, str):
        return symbols[int(expression[1])]
    if not isinstance(expression, tuple):
        return expression
    sign, left, right = expression
    a, b = evaluate(left, symbols), evaluate(right, symbols)
    return OPERATORS[sign](a, b)


OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
}


SHARED = Sizes()
SYMBOLS = [SHARED.symbol((low + high) // 2, low, high) for low, high in RANGES]
FACTS = SHARED.facts()


HOLDS = {
    "divisible": lambda a, b: a % b == 0,
    "equal": lambda a, b: a == b,
    "at_most": lambda a, b: a <= b,
    "at_least": lambda a, b: a >= b,
}


def check_soundness(expression, question):
    kind, other = question
    value, bound = evaluate(expression, SYMBOLS), evaluate(other, SYMBOLS)
    prove = {
        "divisible": prove_divisible,
        "equal": prove_equal,
        "at_most": prove_at_most,
        "at_least": prove_at_least,
    }[kind]
    verdict = prove(value, bound, "n").verdict
    assert SHARED.facts() == FACTS
    if verdict is UNKNOWN:
        return
    outcomes = set()
    for point in itertools.product(*(range(low, high + 1) for low, high in RANGES)):
        a, b = evaluate(expression, point), evaluate(other, point)
        outcomes.add(HOLDS[kind](a, b))
    if verdict is PROVED:
        assert outcomes == {True}, (expression, question)
    if verdict is REFUTED:
        assert outcomes == {False}, (expression, question)


FUZZ = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
    "database": None,
}


@settings(max_examples=2000, derandomize=True, **FUZZ)
@given(expressions, questions)
def test_no_unsound_verdict(expression, question):
    check_soundness(expression, question)


@pytest.mark.slow
@settings(max_examples=20_000, **FUZZ)
@given(expressions, questions)
def test_no_unsound_verdict_in_many(expression, question):
    check_soundness(expression, question)


def test_symints_that_are_constant():
    made = Sizes()
    a = made.symbol(8)
    assert a == 8  # the graph specialises it
    assert isinstance(a, torch.SymInt)
    assert prove_divisible(a, 4, "a").verdict is PROVED
    assert prove_equal(a, 8, "a").verdict is PROVED
    assert prove_at_most(a, 7, "a").verdict is REFUTED
