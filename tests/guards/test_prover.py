"""The prover: every proof path, UNKNOWN where nothing decides, and never an unsound verdict."""

from __future__ import annotations

import pytest
import sympy
import torch

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
        (lambda z: z.h * (z.h + 1), 2, PROVED),
        (lambda z: z.h * (z.h + 1) + 1, 2, REFUTED),
        (lambda z: (2 * z.h + 1) * (2 * z.b + 1), 2, REFUTED),
        (lambda z: z.h * (z.h + 1) * (z.h + 2), 3, PROVED),
        (lambda z: (z.h // 2 + (z.h + 1) // 2 - z.h) * z.b, 4, PROVED),
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
    assert prove_equal(a, b, "a == b").verdict is PROVED
    assert made.facts() == before


QUERIES = {
    "2h % 32 == 0": (lambda h, b: prove_divisible(2 * h, 32, "n"), PROVED),
    "h % 16 == 0": (lambda h, b: prove_divisible(h, 16, "n"), PROVED),
    "(h + 32) % 32 == 0": (lambda h, b: prove_divisible(h + 32, 32, "n"), PROVED),
    "h·b % 32 == 0": (lambda h, b: prove_divisible(h * b, 32, "n"), PROVED),
    "h // 32 · 32 == h": (lambda h, b: prove_equal(h // 32 * 32, h, "n"), PROVED),
    "h >= 32": (lambda h, b: prove_at_least(h, 32, "n"), PROVED),
    "(32h + 1) % 32 == 0": (lambda h, b: prove_divisible(32 * h + 1, 32, "n"), REFUTED),
    "(2h + 1) % 32 == 0": (lambda h, b: prove_divisible(2 * h + 1, 32, "n"), REFUTED),
}


@pytest.mark.parametrize("query", QUERIES)
def test_what_follows_from_a_multiple_of_32(query):
    """None of these is decided by torch 2.13 itself, given the same fact."""
    made = Sizes()
    h, b = made.symbol(64), made.symbol(3)
    assert h % 32 == 0
    before = made.facts()
    ask, verdict = QUERIES[query]
    judgement = ask(h, b)
    assert (judgement.verdict, judgement.evidence) == (
        verdict,
        "divisibility" if query != "h >= 32" else "range",
    )
    assert made.facts() == before


def test_remainders_products_and_sums_that_are_known():
    made = Sizes()
    a, b, c = made.symbol(37), made.symbol(16), made.symbol(60)
    assert a % 32 == 5
    assert (b * c) % 64 == 0
    assert a + b <= c
    assert b != 2
    assert prove_divisible(a + 27, 32, "n").verdict is PROVED
    assert prove_divisible(a, 8, "n").verdict is REFUTED
    assert prove_divisible(3 * b * c, 64, "n").verdict is PROVED
    assert prove_divisible(b, 2, "n").verdict is UNKNOWN
    assert prove_at_least(c - a, 3, "n").verdict is PROVED
    assert prove_at_most(a, c, "n").verdict is PROVED
    assert prove_equal(a, c, "n").verdict is REFUTED
    assert prove_at_least(b, 3, "n").verdict is PROVED
    assert prove_equal(b, 2, "n").verdict is REFUTED


def test_facts_of_one_kind_add_up():
    made = Sizes()
    a = made.symbol(96)
    assert a % 4 == 0
    assert a % 6 == 0
    assert prove_divisible(a, 12, "a").verdict is PROVED
    assert prove_divisible(a, 24, "a").verdict is UNKNOWN
    assert a % 8 == 0  # a new fact, after the first were read
    assert prove_divisible(a, 24, "a").verdict is PROVED


def test_facts_that_come_as_runtime_asserts():
    """Of sizes that are known only when the graph runs."""
    made = Sizes()
    u = made.env.create_unbacked_symint()
    torch._check(u % 16 == 0)
    torch._check(u >= 16)
    torch._check(u <= 64)
    before = made.facts()
    assert prove_divisible(3 * u, 48, "u").verdict is PROVED
    assert prove_at_least(u, 1, "u").verdict is PROVED
    assert prove_at_most(u, 64, "u").verdict is PROVED
    assert prove_at_most(u, 63, "u").verdict is UNKNOWN
    assert made.facts() == before


def test_a_size_may_be_zero():
    """torch's own symbols are "positive" to sympy even where the size 0 is allowed."""
    made = Sizes()
    n = made.symbol(4, low=0)
    assert prove_at_least(n, 1, "n").verdict is UNKNOWN
    assert prove_equal(n, 0, "n").verdict is UNKNOWN
    assert prove_at_least(n, 0, "n").verdict is PROVED
    assert prove_divisible((n + 1) // 2 * 2 - n, 2, "n").verdict is UNKNOWN


def test_fractions_are_no_integers():
    made = Sizes()
    s, t = made.symbol(6), made.symbol(5)
    half = made.env.create_symintnode((s.node.expr + 1) / 2 * 2 * t.node.expr, hint=None)
    assert prove_divisible(half, 2, "n").verdict is UNKNOWN  # (s + 1)·t
    third = made.env.create_symintnode(
        sympy.Mul(2, t.node.expr, (s.node.expr + 1) / 2, evaluate=False), hint=None
    )
    assert prove_divisible(third, 2, "n").verdict is UNKNOWN


def test_unknown_functions_are_equal_to_themselves_only():
    made = Sizes()
    s = made.symbol(6)
    opaque = torch.sym_int(s / 3)
    assert prove_equal(opaque + s, s + opaque, "n").verdict is PROVED
    assert prove_divisible(32 * opaque, 32, "n").verdict is PROVED
    assert prove_equal(opaque, s, "n").verdict is UNKNOWN
    assert prove_at_least(opaque, 0, "n").verdict is UNKNOWN


def test_largest_and_smallest():
    made = Sizes()
    s, t = made.symbol(6, low=4), made.symbol(5, 2, 8)
    largest, smallest = torch.sym_max(s, t), torch.sym_min(s, t)
    assert prove_at_least(largest, 4, "n").verdict is PROVED
    assert prove_at_most(smallest, 8, "n").verdict is PROVED
    assert prove_at_least(largest, 5, "n").verdict is UNKNOWN
    assert prove_equal(torch.sym_max(s, 1), s, "n").verdict is PROVED
    assert prove_divisible(16 * largest, 16, "n").verdict is PROVED


def test_contradicting_facts_decide_nothing_wrong():
    """Nothing runs with such sizes; the prover must only not fail."""
    made = Sizes()
    s = made.env.create_unbacked_symint()
    torch._check(s % 4 == 1)
    torch._check(s * 2 % 8 == 4)
    torch._check(s <= 1)
    torch._check(s >= 1)
    prove_divisible(s, 2, "s")
    prove_equal(s, 7, "s")
    prove_at_most(s, 0, "s")


def test_ranges_decide_bounds(sizes):
    judgement = prove_at_most(sizes.small, 5, "n")
    assert (judgement.verdict, judgement.evidence) == (PROVED, "range")
    assert prove_at_most(sizes.small, 2, "n").verdict is REFUTED
    assert prove_at_least(sizes.small, 3, "n").verdict is PROVED
    assert prove_at_least(sizes.small, 6, "n").verdict is REFUTED
    assert prove_at_most(sizes.h, 64, "n").verdict is UNKNOWN


def test_enumeration_of_a_small_range(sizes):
    n = sizes.small  # 3, 4 or 5
    proved = prove_divisible(n * (n - 3) * (n - 5), 16, "n")
    assert (proved.verdict, proved.evidence) == (UNKNOWN, "")  # -4 at 4
    proved = prove_equal((n - 3) * (n - 4) * (n - 5), 0, "n")
    assert (proved.verdict, proved.evidence) == (PROVED, "range")
    refuted = prove_equal(n * n, n + 2, "n")  # true of 2 only
    assert (refuted.verdict, refuted.evidence) == (REFUTED, "range")
    assert refuted.detail.startswith("never true: ")
    assert prove_divisible(n, 2, "n").verdict is UNKNOWN


def test_a_wide_range_is_not_enumerated(sizes):
    assert prove_equal(sizes.h * sizes.h * sizes.h, sizes.b * sizes.b, "n").verdict is UNKNOWN


def test_residual_in_words(sizes):
    h, b = (str(s.node.expr) for s in (sizes.h, sizes.b))
    assert prove_divisible(sizes.h, 32, "n").residual == f"{h} % 32 == 0"
    assert prove_divisible(sizes.h + 1, 32, "n").residual == f"(1 + {h}) % 32 == 0"
    assert prove_at_most(sizes.h, 64, "n").residual == f"{h} <= 64"
    assert prove_at_least(sizes.h, sizes.b, "n").residual == f"{h} >= {b}"
    assert prove_equal(sizes.h, 1, "n").verdict is REFUTED  # at least 2
    assert prove_equal(sizes.h, sizes.b, "n").residual == f"{h} == {b}"


def test_hints_decide_nothing(sizes):
    """The example's size is 6: no reason to believe that it always is."""
    assert prove_equal(sizes.h, 6, "n").verdict is UNKNOWN
    assert prove_divisible(sizes.h, 3, "n").verdict is UNKNOWN
    assert prove_at_least(sizes.h, 6, "n").verdict is UNKNOWN


def test_symints_that_are_constant():
    made = Sizes()
    a = made.symbol(8)
    assert a == 8  # the graph specialises it
    assert isinstance(a, torch.SymInt)
    assert prove_divisible(a, 4, "a").verdict is PROVED
    assert prove_equal(a, 8, "a").verdict is PROVED
    assert prove_at_most(a, 7, "a").verdict is REFUTED
