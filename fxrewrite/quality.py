"""Quality levels: how far a rewritten model may depart from the original, chosen per call."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

from .errors import UsageError

LEVELS = ("exact", "lossless")
_level: contextvars.ContextVar[str] = contextvars.ContextVar("fxrewrite_quality", default="lossless")


@contextlib.contextmanager
def quality(level: str) -> Iterator[None]:
    """Run rewritten models at this level, without recompiling.

    * ``"exact"``: the original graph, bit for bit.
    * ``"lossless"`` (the default): the same mathematics, with operands and accumulators of the same
      precision or better, in another rounding order.

    There is no level that computes in lower precision than the model does: convert the model for that.

    Raises UsageError for another level. The level belongs to the current thread or task.
    """
    if level not in LEVELS:
        raise UsageError(f"quality({level!r}): expected one of {', '.join(map(repr, LEVELS))}")
    token = _level.set(level)
    try:
        yield
    finally:
        _level.reset(token)


def is_exact() -> bool:
    """Does the current quality level ask for the original graph?"""
    return _level.get() == "exact"
