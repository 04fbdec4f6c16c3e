"""Random guards over random facts, against brute force: no verdict is wrong, and most that can be decided are."""

from __future__ import annotations

import pytest

from tests.guards.worlds import summary, survey


def test_verdicts_are_right():
    found = survey(600, seed=3, beside_torch=False)
    assert not found["wrong"], found["wrong"][:3]
    assert found["decided"] / found["decidable"] >= 0.8


@pytest.mark.slow
def test_verdicts_are_right_of_many():
    found = survey(20_000, seed=11)
    print("\n" + summary(found))
    assert not found["wrong"], found["wrong"][:3]
    assert found["decided"] / found["decidable"] >= 0.8
    assert found["decided"] > found["torch"]
