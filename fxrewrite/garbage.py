"""When garbage is collected: seldom while objects are made that stay, and not at the end of a process."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collecting_less() -> Iterator[None]:
    """Collect garbage seldom while inside.

    Each collection looks at objects of modules, models and graphs that stay: a twentieth of the time that
    imports take, a tenth of an analysis.
    """
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def collect_no_more() -> None:
    """For the end of a process, which gives its memory back at once.

    The interpreter's last collections would look at all that was imported: more than a second.
    """
    gc.freeze()
