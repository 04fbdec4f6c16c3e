"""``fxrewrite bench``: eager, Inductor and fxrewrite in turn."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import UsageError
from ..report.words import duration
from .errors import check_writable, told_in_one_line
from .target import describes_target, one_target, running, takes_target

if TYPE_CHECKING:  # loads torch
    from ..measure.bench import Benchmark, Times


@click.command()
@takes_target
@click.option(
    "--rounds", type=click.IntRange(min=1), default=10, show_default=True, help="Calls of each side."
)
@click.option("--no-inductor", is_flag=True, help="Leave Inductor out, whose compilation takes longest.")
@click.option("--plot", metavar="FILE.png", help="Also draw the times (needs matplotlib).")
@describes_target
def bench(
    target: str,
    inputs: tuple[str, ...],
    dtype: str | None,
    debug: bool,
    rounds: int,
    no_inductor: bool,
    plot: str | None,
) -> None:
    """Time a model as it is, compiled by Inductor, and rewritten: in turn, end to end and site by site.

    {TARGET}

    A model without weights, or on the meta device, gets random ones. Times are wall time on the
    threads that torch uses (OMP_NUM_THREADS).

    Exit code: 0 done, 2 bad usage or a model that cannot be run.
    """
    with told_in_one_line(debug):
        if plot is not None:
            _check_plot(plot)
        found = one_target(target, inputs, dtype)
        with running(target, "Measuring", debug) as tell:
            from ..measure.bench import bench as measure

            done = measure(
                found.model, found.args, found.kwargs, rounds=rounds, inductor=not no_inductor, tell=tell
            )
        if plot is not None:
            from ..measure.plot import draw

            draw(done, target, plot)
            click.echo(f"fxrewrite: wrote {plot}", err=True)
    click.echo(_text(done, rounds))


def _check_plot(path: str) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib: pip install matplotlib")
    check_writable("--plot", path)
    from matplotlib.figure import Figure

    known = Figure().canvas.get_supported_filetypes()
    ending = os.path.splitext(path)[1].removeprefix(".")
    if ending.lower() not in known:
        said = f"a file ending in .{ending} is unknown" if ending else "the file's name has no ending"
        raise UsageError(f"--plot {path!r}: {said}: expected .png, .svg or .pdf")


def _text(done: Benchmark, rounds: int) -> str:
    import torch

    console = Console()
    with console.capture() as capture:
        console.print(Text(f"End to end, {rounds} rounds on {torch.get_num_threads()} threads", "bold"))
        console.print(_end_to_end(done))
        if done.problem:
            console.print(Text(f"No error against float64: {done.problem}", "yellow"))
        console.print(Text(f"\nSites, the longest first ({done.report.summary()})", "bold"))
        if done.sites:
            console.print(_sites(done))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _end_to_end(done: Benchmark) -> Table:
    table = _table("", "median", "least", "spread", "x eager", "error")
    eager = done.times["eager"]
    for name, times in done.times.items():
        error = f"{done.errors[name]:.2e}" if name in done.errors else ""
        table.add_row(name, *_numbers(times), _factor(eager, times), error)
    return table


def _sites(done: Benchmark) -> Table:
    names = list(done.times)
    table = _table("count", *(f"{name}" for name in names), "x eager")
    table.add_column("site, implementation", overflow="fold")
    for entry in done.sites:
        medians = [duration(entry.times[name].median) for name in names]
        factor = _factor(entry.times["eager"], entry.times["fxrewrite"])
        site = entry.site
        text = f"{site.kind} {site.module or site.node}: {site.implementation}"
        table.add_row(str(entry.count), *medians, factor, Text(text))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _numbers(times: Times) -> list[str]:
    return [duration(times.median), duration(times.least), f"{100 * times.spread:.0f} %"]


def _factor(eager: Times, times: Times) -> str:
    return f"{eager.median / times.median:.2f}"
