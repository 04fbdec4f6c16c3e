"""The command line: ``fxrewrite sites TARGET``."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape

from .errors import FxrewriteError, UsageError, require_torch
from .report import KINDS, Report
from .streams import progress, quiet_logs, stdout_to_stderr
from .target import DEBUG, Target, describe, load

if TYPE_CHECKING:  # nothing here may load torch before its version is checked
    from .report.table import By

FAILED, BAD_USAGE, INTERRUPTED = 1, 2, 130


class _OneLineErrors(click.Group):
    """A group whose every error is one line on stderr, and whose exit code means what the help says."""

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
            code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.Abort:
            click.echo("fxrewrite: interrupted", err=True)
            code = INTERRUPTED
        except click.ClickException as error:
            click.echo(f"fxrewrite: error: {_message(error)}", err=True)
            code = BAD_USAGE
        if standalone_mode:
            sys.exit(code or 0)
        return code


def _message(error: click.ClickException) -> str:
    text = " ".join(error.format_message().split())
    if not isinstance(error, click.UsageError):
        return text
    command = error.ctx.command_path if error.ctx else "fxrewrite"
    return f"{text.rstrip('.')} (see '{command} --help')"


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"fxrewrite {_version('fxrewrite')} (torch {_version('torch')})")
        context.exit()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


@click.group(cls=_OneLineErrors, no_args_is_help=False)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print it."
)
def main() -> None:
    """Find what fxrewrite would rewrite in a PyTorch model, and why it would leave the rest."""


@main.command()
@click.argument("target")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema 1: fxrewrite/report/schema.json).")
@click.option("--by", type=click.Choice(["kind", "module"]), default="kind", help="Sections of the table.")
@click.option(
    "--fail-on",
    multiple=True,
    metavar="rejected[:KIND]",
    help=f"Exit 1 if a site is rejected, or one of this kind: {', '.join(KINDS)}. May be repeated.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def sites(target: str, as_json: bool, by: By, fail_on: tuple[str, ...], debug: bool) -> int:
    """Report the sites of a model, without running or changing it.

    TARGET is package.module:callable or path/to/file.py:callable. The callable takes no arguments
    and returns a model, (model, args) or (model, args, kwargs). The model may be on the meta
    device. It is analysed for inference, as under torch.no_grad().

    Exit code: 0 fine, 1 a --fail-on was hit, 2 bad usage or a model that cannot be analysed.
    """
    try:
        failing = {condition: _failing_kind(condition) for condition in fail_on}
        report = _report(target, debug)
    except FxrewriteError as error:
        if debug:
            traceback.print_exception(error)
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(report.to_dict(), indent=2) if as_json else _table(report, by))
    hits = [_hit(report, condition, kind) for condition, kind in failing.items()]
    return FAILED if any(hits) else 0


def _failing_kind(condition: str) -> str:
    """The kind that a --fail-on names, "" for any."""
    status, colon, kind = condition.partition(":")
    if status != "rejected":
        raise UsageError(f"--fail-on {condition!r} is unknown: expected rejected or rejected:KIND")
    if colon and kind not in KINDS:
        raise UsageError(f"--fail-on {condition!r} names an unknown kind: expected one of {', '.join(KINDS)}")
    return kind


def _report(text: str, debug: bool) -> Report:
    with stdout_to_stderr():
        with progress(f"Loading {escape(text)}"):
            require_torch()
            target = load(text)
        logs = contextlib.nullcontext() if debug else quiet_logs()
        with logs, progress(f"Analysing {escape(type(target.model).__name__)}"):
            return _analyze(target, text)


def _analyze(target: Target, text: str) -> Report:
    import torch

    from fxrewrite import analyze

    given = bool(target.args or target.kwargs)
    advice = "" if given else "; it gave no example inputs: if they are needed, return (model, args, kwargs)"
    try:
        with torch.no_grad():
            return analyze(target.model, target.args, target.kwargs)
    except FxrewriteError as error:
        raise FxrewriteError(f"{text}: {error}{advice}") from error
    except Exception as error:
        raise FxrewriteError(f"{text} cannot be analysed: {describe(error)}{advice}; {DEBUG}") from error


def _table(report: Report, by: By) -> str:
    from .report.table import render

    return render(report, by=by, console=Console())


def _hit(report: Report, condition: str, kind: str) -> bool:
    count = sum(site.kind == kind or not kind for site in report.rejected)
    if count:
        click.echo(f"fxrewrite: --fail-on {condition}: {count} site{'s' * (count != 1)} rejected", err=True)
    return count > 0
