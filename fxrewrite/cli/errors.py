"""What is common to every command: errors and exit codes."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import click

from ..errors import FxrewriteError, UsageError, first_line
from ..garbage import collecting_less

FAILED, BAD_USAGE, FAULT, INTERRUPTED = 1, 2, 3, 130


class OneLineErrors(click.Group):
    """A group whose every error is one line on stderr, and whose exit code means what the help says.

    A fault of our own comes with its traceback.
    """

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line; exit in stand-alone mode, else return the exit code."""
        try:
            with collecting_less():
                code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.Abort:
            click.echo("fxrewrite: interrupted", err=True)
            code = INTERRUPTED
        except click.ClickException as error:
            click.echo(f"fxrewrite: error: {_message(error)}", err=True)
            code = BAD_USAGE
        except Exception as error:  # not 1, which says that a check failed
            traceback.print_exception(error)
            click.echo(
                f"fxrewrite: error: a fault of fxrewrite: {type(error).__name__}: {first_line(error)}; "
                "please report it, with the lines above",
                err=True,
            )
            code = FAULT
        if standalone_mode:
            sys.exit(code or 0)
        return code


def _message(error: click.ClickException) -> str:
    text = " ".join(error.format_message().split())
    if not isinstance(error, click.UsageError):
        return text
    command = error.ctx.command_path if error.ctx else "fxrewrite"
    return f"{text.rstrip('.')} (see '{command} --help')"


def check_writable(option: str, path: str) -> None:
    """Raise UsageError where the file that ``option`` names cannot be written: before the work, not after."""
    folder = os.path.dirname(path) or os.curdir
    if os.path.isdir(path):
        problem = errno.EISDIR
    elif not os.path.isdir(folder):
        problem = errno.ENOENT
    elif not os.access(path if os.path.exists(path) else folder, os.W_OK):
        problem = errno.EACCES
    else:
        return
    raise UsageError(f"{option} {path!r} cannot be written: {os.strerror(problem)}")


@contextlib.contextmanager
def told_in_one_line(debug: bool) -> Iterator[None]:
    """Errors raised on purpose inside end the command in one line, after the traceback with ``debug``."""
    try:
        yield
    except FxrewriteError as error:
        if debug:
            traceback.print_exception(error)
        raise click.ClickException(str(error)) from error
