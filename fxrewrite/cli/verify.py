"""``fxrewrite verify``: the errors of every replaced site, against float64."""

from __future__ import annotations

import math

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import TargetError
from .errors import FAILED, told_in_one_line
from .target import describes_target, one_target, running, takes_target


@click.command()
@takes_target
@click.option("--all", "show_all", is_flag=True, help="List every site, and not the worst 20.")
@describes_target
def verify(target: str, inputs: tuple[str, ...], dtype: str | None, debug: bool, show_all: bool) -> int:
    """Run a model once and compare each replacement with the code that it replaces, worst first.

    {TARGET}

    Both get the values that the site gets in the model, and both are held against the original code
    in float64. A model without weights, or on the meta device, gets random ones.

    Exit code: 0 all sites hold, 1 one does not, 2 bad usage or a model that cannot be run.
    """
    with told_in_one_line(debug):
        found = one_target(target, inputs, dtype)
        with running(target, "Verifying", debug):
            from ..measure.verify import ALLOWED
            from ..measure.verify import verify as measure

            done = measure(found.model, found.args, found.kwargs)
        if not done.report.sites:
            raise TargetError(f"{target}: no sites were found, so there is nothing to verify")
    errors = done.errors if show_all else done.errors[:20]
    console = Console()
    with console.capture() as capture:
        console.print(
            Text(
                f"{len(done.errors)} replaced sites run: {len(done.errors) - len(done.failed)} within "
                f"{ALLOWED} times the original's RMS error against float64, {len(done.failed)} not.",
                "bold",
            )
        )
        if errors:
            console.print(_table(errors))
        if len(errors) < len(done.errors):
            console.print(Text(f"{len(done.errors) - len(errors)} better ones are not shown (--all).", "dim"))
        for note in done.report.notes:
            console.print(Text(f"note: {note}"))
    click.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))
    return FAILED if done.failed else 0


def _table(errors: list) -> Table:  # type: ignore[type-arg]  # of Errors, which would load torch
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("site")
    for column in ("original", "ours", "ratio"):
        table.add_column(column, justify="right")
    table.add_column("where, implementation", overflow="fold")
    for error in errors:
        site = error.site
        ratio = Text(
            "?" if math.isnan(error.ratio) else f"{error.ratio:.2f}", "green" if error.holds else "red"
        )
        where = f"{site.module or site.node}: {site.implementation}"
        if not error.same_places:
            where += "; NaN or infinity at other places"
        if error.problem:
            where += f"; {error.problem}"
        table.add_row(
            f"{site.id} {site.kind}", f"{error.original:.2e}", f"{error.ours:.2e}", ratio, Text(where)
        )
    return table
