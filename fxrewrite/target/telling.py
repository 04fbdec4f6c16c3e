"""Errors of other people's code, told in one line."""

from __future__ import annotations

import os
import traceback

DEBUG = "run with --debug for the traceback"


def describe(error: BaseException, file: str | None = None) -> str:
    """An exception in one line: its type, the first line of its message, and where it was raised.

    The place is the innermost line of ``file`` on the way to the error, or else of any file.
    """
    message = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    if isinstance(error, SyntaxError) and error.filename:
        message, place = error.msg, f"{shorten(error.filename)}:{error.lineno}"
    else:
        place = _place(error, file)
    if len(message) > 300:
        message = message[:300] + "..."
    return type(error).__name__ + (f": {message}" if message else "") + (f" (at {place})" if place else "")


def shorten(path: str) -> str:
    """``path`` relative to the current folder where it lies below it, else as it is."""
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative


def _place(error: BaseException, file: str | None) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    inner = [f for f in frames if file and os.path.abspath(f.filename) == os.path.abspath(file)] or frames
    return f"{shorten(inner[-1].filename)}:{inner[-1].lineno}" if inner else ""
