"""``fxrewrite sites``: the dry run and its report."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import click
from rich.console import Console

from ..errors import FxrewriteError, UsageError
from ..report import KINDS, Report
from ..streams import progress
from .errors import FAILED, check_writable, told_in_one_line
from .target import analyse, describes_target, load_targets, takes_target

if TYPE_CHECKING:  # nothing here may load torch before its version is checked
    from ..report.table import By


@click.command()
@takes_target
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema 1: fxrewrite/report/schema.json).")
@click.option("--markdown", is_flag=True, help="Print Markdown, for a pull request.")
@click.option("--html", metavar="FILE", help="Also write a page to look through in a browser.")
@click.option(
    "--by", type=click.Choice(["family", "module"]), default="family", help="Sections of the table."
)
@click.option(
    "--explain", metavar="ID", help="All about one site, by its id, or about those of a module, by its path."
)
@click.option(
    "--fail-on",
    multiple=True,
    metavar="rejected[:KIND]",
    help=f"Exit 1 if a site is rejected, or one of this kind: {', '.join(KINDS)}. May be repeated.",
)
@describes_target
def sites(
    target: str,
    inputs: tuple[str, ...],
    dtype: str | None,
    debug: bool,
    as_json: bool,
    markdown: bool,
    html: str | None,
    by: By,
    explain: str | None,
    fail_on: tuple[str, ...],
) -> int:
    """Report the sites of a model, without running or changing it.

    {TARGET}

    The model may be on the meta device. It is analysed for inference, as under torch.no_grad().

    Exit code: 0 fine, 1 a --fail-on was hit, 2 bad usage or a model that cannot be analysed.
    """
    with told_in_one_line(debug):
        forms = {"--json": as_json, "--markdown": markdown, "--explain": explain is not None}
        if sum(forms.values()) > 1:
            raise UsageError(f"{' and '.join(name for name, on in forms.items() if on)} exclude each other")
        if html is not None:
            check_writable("--html", html)
        failing = {condition: _failing_kind(condition) for condition in fail_on}
        report = analyse(load_targets(target, inputs, dtype), target, debug)
        text = _text(report, as_json, markdown, explain, by)
        if html is not None:
            _write_html(html, report, target)
    click.echo(text)
    hits = [_hit(report, condition, kind) for condition, kind in failing.items()]
    return FAILED if any(hits) else 0


def _text(report: Report, as_json: bool, markdown: bool, explain: str | None, by: By) -> str:
    if as_json:
        return json.dumps(report.to_dict(), indent=2)
    if markdown:
        from ..report.markdown import render_markdown

        return render_markdown(report, by=by)
    if explain is not None:
        from ..measure.ceilings import measured
        from ..report.explain import find, render_site

        found = find(report, explain)
        with progress("Measuring this machine"):
            return "\n\n".join(render_site(report, site, Console(), measured) for site in found)
    from ..report.table import render

    return render(report, by=by, console=Console())


def _write_html(path: str, report: Report, title: str) -> None:
    from ..report.html import render_html

    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(render_html(report, title))
    except OSError as error:
        raise FxrewriteError(f"--html {path!r} cannot be written: {os.strerror(error.errno or 0)}") from error
    click.echo(f"fxrewrite: wrote {path}", err=True)


def _failing_kind(condition: str) -> str:
    """The kind that a --fail-on names, "" for any."""
    status, colon, kind = condition.partition(":")
    if status != "rejected":
        raise UsageError(f"--fail-on {condition!r} is unknown: expected rejected or rejected:KIND")
    if colon and kind not in KINDS:
        raise UsageError(f"--fail-on {condition!r} names an unknown kind: expected one of {', '.join(KINDS)}")
    return kind


def _hit(report: Report, condition: str, kind: str) -> bool:
    count = sum(site.kind == kind or not kind for site in report.rejected)
    if count:
        click.echo(f"fxrewrite: --fail-on {condition}: {count} site{'s' * (count != 1)} rejected", err=True)
    return count > 0
