"""Which stream says what: stdout is the report's alone, all else goes to stderr."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator

from rich.console import Console


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send what is printed inside to stderr: from Python, from native code, from child processes."""
    with contextlib.ExitStack() as stack:
        if sys.stdout is not None:
            sys.stdout.flush()
        with contextlib.suppress(OSError):  # no such stream: nothing to protect
            saved = os.dup(1)
            stack.callback(os.close, saved)
            os.dup2(2, 1)
            stack.callback(os.dup2, saved, 1)
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield


@contextlib.contextmanager
def quiet_logs() -> Iterator[None]:
    """Keep libraries from logging a failure, with its traceback, that is told in one line afterwards."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def progress(text: str) -> Iterator[Callable[[str], None]]:
    """Show that work goes on, on a terminal only. Gives a function that changes what is said."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status(text) as status:
        yield lambda part: status.update(f"{text}: {part}")
