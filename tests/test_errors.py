"""Errors are told in one line."""

from fxrewrite.errors import first_line


def test_first_line():
    assert first_line(ValueError("\n\n  a \nb")) == "a"
    assert first_line(ValueError("")) == "ValueError"
