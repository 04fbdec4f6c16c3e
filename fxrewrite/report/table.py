"""The report as text: a summary, one row for each group of equal sites, what did not apply, notes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from io import StringIO
from typing import Literal

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .findings import Findings
from .merge import Group, merge, residuals
from .site import KINDS
from .words import coverage, operands, short_location, sites_text, summary

By = Literal["family", "module"]

WIDE = 110
"""From this width on, place and findings stand side by side; below it, one above the other."""


def render(report: Findings, *, by: By = "family", console: Console | None = None) -> str:
    """The report as a table, in sections by family or by block of the model.

    Width and colours are those of ``console``; without one, the text is plain and as wide as the
    terminal (80 columns where there is none). Nothing is cut short: long text is wrapped.
    """
    console = console or Console(file=StringIO(), color_system=None, force_terminal=False)
    with console.capture() as capture:
        _print_all(console, report, by)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _print_all(console: Console, report: Findings, by: By) -> None:
    _write(console, summary(report), style="bold")
    if worked := coverage(report):
        _write(console, worked)
    if report.sites:
        console.print(_table(merge(report.listed), by, console.width))
    unused = Counter((s.kind, r.implementation, r.requirement) for s in report.listed for r in s.refusals)
    lines = [
        f"{kind} by {name}: {need} ({sites_text(count)})" for (kind, name, need), count in unused.items()
    ]
    _list(console, "Implementations that do not apply:", lines)
    calls = [f"{op} by {by}: {n}" for op, counts in report.calls.items() for by, n in counts.items()]
    _list(console, "Calls since the model first ran, of this process:", calls)
    _list(console, "Notes:", report.notes)
    if report.captures:
        _write(console, "\n" + _effort(report), style="dim")


def _effort(report: Findings) -> str:
    graphs, nodes = len(report.captures), sum(c.nodes for c in report.captures)
    capturing = sum(c.capture_seconds for c in report.captures)
    rewriting = sum(c.rewrite_seconds for c in report.captures)
    return (
        f"{graphs} graph{'s' * (graphs != 1)}, {nodes} nodes; captured in {capturing:.1f} s, analysed in "
        f"{rewriting:.1f} s." + (" Dry run: nothing was executed or changed." if report.predicted else "")
    )


def _table(groups: list[Group], by: By, width: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("count\nid", justify="right", no_wrap=True)
    table.add_column("family\nstatus", no_wrap=True)
    if width >= WIDE:
        longest = max(len(line) for group in groups for line in _place(group))
        table.add_column("module\nfile:line", overflow="fold", width=min(longest, width * 2 // 5))
        table.add_column("operands\nimplementation or reason", overflow="fold")
    else:
        table.add_column("module, file:line, operands,\nimplementation or reason", overflow="fold")
    for name, section in sections(groups, by):
        sites = [site for group in section for site in group.sites]
        table.add_row()
        heading = f"{name}: {sum(site.matched for site in sites)} of {len(sites)} matched"
        table.add_row("", "", Text(heading, style="bold"))
        for group in section:
            table.add_row(*_row(group, side_by_side=width >= WIDE))
    return table


def sections(groups: list[Group], by: By) -> list[tuple[str, list[Group]]]:
    """The groups by family or by block of the model, each section with its heading."""
    if by == "module":
        order = list(dict.fromkeys(group.block for group in groups))
        groups = sorted(groups, key=lambda group: order.index(group.block))
        parts = itertools.groupby(groups, lambda group: group.block or "(no submodule)")
    else:
        order = list(dict.fromkeys([*KINDS, *(group.first.kind for group in groups)]))
        groups = sorted(groups, key=lambda group: (order.index(group.first.kind), not group.first.matched))
        parts = itertools.groupby(groups, lambda group: group.first.kind)
    return [(name, list(part)) for name, part in parts]


def _row(group: Group, *, side_by_side: bool) -> list[Text]:
    site = group.first
    status = Text(f"{site.kind}\n") + Text(site.status, style="green" if site.matched else "red")
    place = _lines(_place(group))
    found = _lines([operands(site), *outcome(group)])
    count = Text(f"{len(group.sites)}\n") + Text(site.id, style="dim")
    return [count, status, place, found] if side_by_side else [count, status, _lines([place, found])]


def _place(group: Group) -> list[str]:
    """The module, and each file with its lines."""
    files: dict[str, list[str]] = {}
    for location in group.locations:
        file, _, line = short_location(location).rpartition(":")
        files.setdefault(file, []).append(line)
    return [
        group.module or "(no submodule)",
        *(f"{file}:{', '.join(lines)}" for file, lines in files.items()),
    ]


def outcome(group: Group) -> list[str]:
    """The implementation with what is left to check at run time, or the reason, a line each."""
    site = group.first
    lines = [group.reason] if not site.matched else [f"implementation: {site.implementation or 'unknown'}"]
    lines += residuals(site) if site.matched else []
    return lines


def _lines(parts: Iterable[str | Text]) -> Text:
    return Text("\n").join(Text(part) if isinstance(part, str) else part for part in parts if part)


def _write(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style))


def _list(console: Console, title: str, items: Iterable[str]) -> None:
    items = list(items)
    if not items:
        return
    _write(console, f"\n{title}", style="bold")
    grid = Table.grid(padding=(0, 1))
    grid.add_column()
    grid.add_column(overflow="fold")
    for item in items:
        grid.add_row(Text("-"), Text(item))
    console.print(Padding(grid, (0, 0, 0, 1)))
