"""Guards: each condition judged, with what the report says where it fails."""

from __future__ import annotations

import pytest
import torch

from fxrewrite.guards import (
    Verdict,
    at_least,
    at_most,
    device_is,
    divisible,
    dtype_in,
    equal,
    holds,
    same_dtype,
    same_shape,
)
from fxrewrite.guards.vocabulary import conjunction
from tests.guards.symbols import Sizes

BF16, FP32 = torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2)


@pytest.mark.parametrize(
    ("guard", "words"),
    [
        (divisible(64, 32, "dim"), "dim % 32 == 0"),
        (equal(1, 1, "batch == 1"), "batch == 1"),
        (at_most(3, 4, "rank"), "rank <= 4"),
        (at_least(3, 2, "rank"), "rank >= 2"),
        (same_shape((2, 3), (2, 3), "one shape"), "one shape"),
        (same_shape((), (), "one shape"), "one shape"),
        (dtype_in(BF16, [torch.bfloat16, torch.float16], "x"), "x is bfloat16 or float16"),
        (same_dtype({"x": BF16, "y": BF16}), "x, y of one dtype"),
        (device_is(BF16, "cpu", "x"), "x on cpu"),
        (holds(True, "fact", "no"), "fact"),
    ],
)
def test_proved(guard, words):
    judgement = guard.judge()
    assert (judgement.verdict, judgement.guard, judgement.detail) == (Verdict.PROVED, words, "")
    assert judgement.evidence == "static"


@pytest.mark.parametrize(
    ("guard", "detail"),
    [
        (divisible(80, 32, "dim"), "dim = 80: 80 % 32 = 16"),
        (equal(2, 1, "batch == 1"), "batch == 1: 2 against 1"),
        (at_most(5, 4, "rank"), "rank = 5 > 4"),
        (at_least(1, 2, "rank"), "rank = 1 < 2"),
        (same_shape((2, 3), (2, 4), "one shape"), "one shape: 3 against 4"),
        (same_shape((2, 3), (3,), "one shape"), "one shape: rank 2 against 1"),
        (dtype_in(FP32, [torch.bfloat16], "x"), "x is float32, needed: bfloat16"),
        (same_dtype({"x": BF16, "y": FP32}), "mixed dtypes: x bfloat16, y float32"),
        (device_is(FP32, "cuda", "x"), "x is on cpu"),
        (holds(False, "fact", "no"), "no"),
    ],
)
def test_refuted(guard, detail):
    judgement = guard.judge()
    assert (judgement.verdict, judgement.detail) == (Verdict.REFUTED, detail)


def test_allowed_dtypes_may_be_any_iterable():
    assert dtype_in(FP32, iter([torch.float32]), "x").judge().verdict is Verdict.PROVED


def test_one_false_dim_refutes_and_unknown_dims_remain():
    made = Sizes()
    a, b = made.symbol(4), made.symbol(5)
    assert same_shape((a, 2), (b, 3), "x").judge().verdict is Verdict.REFUTED
    unknown = same_shape((a, 2, a), (b, 2, b), "x").judge()
    assert unknown.verdict is Verdict.UNKNOWN
    assert unknown.residual.count("==") == 1  # said once
    assert same_shape((a, 2), (a, 2), "x").judge().evidence == "identity, static"


def test_conjunction_names_all_that_remains():
    made = Sizes()
    a, b = made.symbol(4), made.symbol(5)
    parts = [divisible(a, 8, "a").judge(), at_most(b, 9, "b").judge(), equal(1, 1, "one").judge()]
    both = conjunction(parts, "all")
    assert both.verdict is Verdict.UNKNOWN
    assert both.residual == f"{a.node.expr} % 8 == 0 and {b.node.expr} <= 9"
