"""Numbers as the report says them."""

from __future__ import annotations

import pytest

from fxrewrite.report.words import amount, duration


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (1234.0, "1234 s"),
        (1.0, "1 s"),
        (0.99999, "1 s"),
        (0.9994, "999 ms"),
        (0.0123456, "12.3 ms"),
        (0.001, "1 ms"),
        (0.00099999, "1 ms"),
        (87.9e-6, "87.9 µs"),
        (1e-8, "0.01 µs"),
        (0.0, "0 µs"),
    ],
)
def test_durations(seconds, said):
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("number", "said"), [(999.4, "999 B"), (999.6, "1 kB"), (1.234e12, "1.23 TB"), (0, "0 B")]
)
def test_amounts(number, said):
    assert amount(number, "B") == said
