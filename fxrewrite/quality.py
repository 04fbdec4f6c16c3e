"""Quality levels: how far a rewritten model may depart from the original, chosen per call."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Iterator

from .errors import UsageError
from .ops.library import allow_bf16_operands

LEVELS = ("exact", "lossless", "high")
_level: contextvars.ContextVar[str] = contextvars.ContextVar("fxrewrite_quality", default="lossless")


@contextlib.contextmanager
def quality(level: str) -> Iterator[None]:
    """Run rewritten models at this level, without recompiling.

    * ``"exact"``: the original graph, bit for bit.
    * ``"lossless"`` (the default): the same mathematics, with operands and accumulators of the same
      precision or better, in another rounding order.
    * ``"high"``: where kernels are faster for it, float32 operands of some products are rounded to bfloat16
      (relative error 2^-8 each; sums stay float32). These are x and the weight of ``linear``, and keys and
      values in ``relu_linear_attention``; what is bfloat16 or float16 already is computed as with
      "lossless". Where a kernel does so, ``fxrewrite doctor`` and a site's explanation say it, and it
      counts under a name of its own ("avx512_bf16:panel_bf16").

    The level belongs to the current thread or asyncio task. Rewritten modules and compiled models take it
    from there. An ExportedProgram has no original graph to go back to: "exact" is "lossless" for it; and it
    takes the level from its thread, which tasks share, so within a task "high" does not reach it. A CUDA
    graph replays the level at which it was recorded.

    Raises UsageError for another level.
    """
    if level not in LEVELS:
        raise UsageError(f"quality({level!r}): expected one of {', '.join(map(repr, LEVELS))}")
    token = _level.set(level)
    try:
        with contextlib.nullcontext() if _in_task() else in_kernels():
            yield
    finally:
        _level.reset(token)


def is_exact() -> bool:
    """Does the current quality level ask for the original graph?"""
    return _level.get() == "exact"


class _Thread(threading.local):
    """What the kernels have been told about this thread."""

    bf16_operands = False


_thread = _Thread()


@contextlib.contextmanager
def in_kernels() -> Iterator[None]:
    """The current level, for the kernels that this thread calls: they cannot see the variables of a task."""
    before, wanted = _thread.bf16_operands, _level.get() == "high"
    _tell(wanted)
    try:
        yield
    finally:
        _tell(before)


def _tell(bf16_operands: bool) -> None:
    if bf16_operands != _thread.bf16_operands:
        allow_bf16_operands(bf16_operands)
        _thread.bf16_operands = bf16_operands


def _in_task() -> bool:
    """Does this thread run asyncio's tasks in turn?"""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
