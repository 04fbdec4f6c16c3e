"""The report as text: a summary, one row for each group of equal sites, what did not apply, notes."""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable
from io import StringIO
from typing import Literal

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .merge import Group, merge, residuals
from .report import Report
from .site import KINDS, Site

By = Literal["kind", "module"]

_SHORT_DTYPE = re.compile(r"\b(b?)float(16|32|64)\b")

WIDE = 110
"""From this width on, place and findings stand side by side; below it, one above the other."""


def render(report: Report, *, by: By = "kind", console: Console | None = None) -> str:
    """The report as a table, in sections by kind or by block of the model.

    Width and colours are those of ``console``; without one, the text is plain and as wide as the
    terminal (80 columns where there is none). Nothing is cut short: long text is wrapped.
    """
    console = console or Console(file=StringIO(), color_system=None, force_terminal=False)
    with console.capture() as capture:
        _print_all(console, report, by)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _print_all(console: Console, report: Report, by: By) -> None:
    _write(console, _summary(report), style="bold")
    if report.sites:
        console.print(_table(merge(report.sites), by, console.width))
    unused = Counter((s.kind, r.implementation, r.requirement) for s in report.sites for r in s.refusals)
    lines = [f"{kind} by {name}: {need} ({_sites(count)})" for (kind, name, need), count in unused.items()]
    _list(console, "Implementations that do not apply:", lines)
    _list(console, "Notes:", report.notes)
    if report.captures:
        _write(console, "\n" + _effort(report), style="dim")


def _summary(report: Report) -> str:
    if not report.sites:
        return "No sites found."
    reasons = Counter(site.code.name for site in report.rejected if site.code)
    by_reason = ", ".join(f"{count} {name}" for name, count in reasons.most_common())
    rejected = f"{len(report.rejected)} rejected" + (f" ({by_reason})" if by_reason else "")
    return f"{_sites(len(report.sites))} found: {len(report.matched)} matched, {rejected}."


def _effort(report: Report) -> str:
    graphs, nodes = len(report.captures), sum(c.nodes for c in report.captures)
    capturing = sum(c.capture_seconds for c in report.captures)
    rewriting = sum(c.rewrite_seconds for c in report.captures)
    return (
        f"{graphs} graph{'s' * (graphs != 1)}, {nodes} nodes; captured in {capturing:.1f} s, analysed in "
        f"{rewriting:.1f} s." + (" Dry run: nothing was executed or changed." if report.predicted else "")
    )


def _table(groups: list[Group], by: By, width: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("count", justify="right", no_wrap=True)
    table.add_column("kind\nstatus", no_wrap=True)
    if width >= WIDE:
        longest = max(len(line) for group in groups for line in _place(group))
        table.add_column("module\nfile:line", overflow="fold", width=min(longest, width * 2 // 5))
        table.add_column("operands\nimplementation or reason", overflow="fold")
    else:
        table.add_column("module, file:line, operands,\nimplementation or reason", overflow="fold")
    for name, section in _sections(groups, by):
        sites = [site for group in section for site in group.sites]
        table.add_row()
        heading = f"{name}: {sum(site.matched for site in sites)} of {len(sites)} matched"
        table.add_row("", "", Text(heading, style="bold"))
        for group in section:
            table.add_row(*_row(group, side_by_side=width >= WIDE))
    return table


def _sections(groups: list[Group], by: By) -> list[tuple[str, list[Group]]]:
    if by == "module":
        order = list(dict.fromkeys(group.block for group in groups))
        groups = sorted(groups, key=lambda group: order.index(group.block))
        parts = itertools.groupby(groups, lambda group: group.block or "(no module)")
    else:
        order = list(dict.fromkeys([*KINDS, *(group.first.kind for group in groups)]))
        groups = sorted(groups, key=lambda group: (order.index(group.first.kind), not group.first.matched))
        parts = itertools.groupby(groups, lambda group: group.first.kind)
    return [(name, list(part)) for name, part in parts]


def _row(group: Group, *, side_by_side: bool) -> list[Text]:
    site = group.first
    status = Text(f"{site.kind}\n") + Text(site.status, style="green" if site.matched else "red")
    place = _lines(_place(group))
    found = _lines([_operands(site), *_outcome(group)])
    count = Text(str(len(group.sites)))
    return [count, status, place, found] if side_by_side else [count, status, _lines([place, found])]


def _place(group: Group) -> list[str]:
    """The module, and each file with its lines."""
    files: dict[str, list[str]] = {}
    for location in group.locations:
        file, _, line = _shorten(location).rpartition(":")
        files.setdefault(file, []).append(line)
    return [
        group.module or "(module unknown)",
        *(f"{file}:{', '.join(lines)}" for file, lines in files.items()),
    ]


def _outcome(group: Group) -> list[str]:
    site = group.first
    lines = [group.reason] if not site.matched else [f"implementation: {site.implementation or 'unknown'}"]
    lines += [f"checked at run time: {condition}" for condition in residuals(site) if site.matched]
    return lines


def _operands(site: Site) -> str:
    """The operands, with those of equal type and shape written together: "q, k, v: bf16[1,24,512,64]"."""
    names: dict[str, list[str]] = {}
    for name, described in site.operands.items():
        names.setdefault(_SHORT_DTYPE.sub(r"\1f\2", described.replace(", ", ",")), []).append(name)
    return "; ".join(f"{', '.join(same)}: {described}" for described, same in names.items())


def _shorten(location: str) -> str:
    """A place in the source without the part of the path that says nothing."""
    installed = re.search(r"[/\\](?:site|dist)-packages[/\\]", location)
    if installed:
        return location[installed.end() :]
    try:
        relative = os.path.relpath(location)
    except ValueError:  # another drive
        return location
    return location if relative.startswith(os.pardir) else relative


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


def _sites(count: int) -> str:
    return f"{count} site{'s' * (count != 1)}"
