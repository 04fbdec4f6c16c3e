"""One site explained in full: its code, its guards, the kernels that were asked."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import UsageError
from ..guards.verdict import Judgement, Verdict
from .findings import Findings
from .merge import merge
from .roofline import Ceilings, expected
from .site import Operation, Site
from .words import at_high, operands, short_location, sites_text, work

_COLOURS = {Verdict.PROVED: "green", Verdict.UNKNOWN: "yellow", Verdict.REFUTED: "red"}


def find(report: Findings, wanted: str) -> list[Site]:
    """The site with this id, or the sites of the module of this path; raises UsageError for neither."""
    found = [s for s in report.sites if s.id == wanted] or [s for s in report.sites if s.module == wanted]
    if found:
        return found
    if not report.sites:
        raise UsageError(f"no site {wanted!r}: no sites were found")
    names = list(dict.fromkeys([s.id for s in report.sites] + [s.module for s in report.sites if s.module]))
    close = difflib.get_close_matches(wanted, names, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    first, last = report.sites[0].id, report.sites[-1].id
    raise UsageError(f"no site or module {wanted!r}: ids go from {first} to {last}{hint}")


def render_site(
    report: Findings, site: Site, console: Console, measure: Callable[[str], Ceilings] | None = None
) -> str:
    """The text of one site; width and colours are those of ``console``.

    ``measure`` gives the machine's ceilings for a dtype; with it the text has the time to expect.
    """
    with console.capture() as capture:
        _print_site(console, report, site, measure)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _print_site(
    console: Console, report: Findings, site: Site, measure: Callable[[str], Ceilings] | None
) -> None:
    colour = "green" if site.matched else "red"
    title = Text.assemble((site.id, "bold"), f"  {site.kind}  ", (site.status, colour))
    console.print(title + Text(f"  (rule {site.rule})" if site.rule else ""))
    _print_rows(console, _facts(report, site, measure))
    if site.operations:
        _heading(console, "Captured code")
        for line in _code(site.operations):
            console.print(line, soft_wrap=True)
    if site.judgements:
        _heading(console, "Guards")
        _print_rows(console, map(_guard, site.judgements))
    if site.refusals or site.implementation:
        _heading(console, "Implementations, best first")
        rows = [(Text("refused", "red"), r.implementation, r.requirement) for r in site.refusals]
        if site.implementation:
            rows.append((Text("chosen", "green"), site.implementation, at_high(site.lowered)))
        _print_rows(console, rows)


def _facts(
    report: Findings, site: Site, measure: Callable[[str], Ceilings] | None
) -> Iterator[tuple[str, str]]:
    if site.reason:
        yield "reason", site.reason
    yield "module", site.module or "(no submodule)"
    yield "source", short_location(site.location) or "(unknown)"
    if site.source:
        yield "", site.source
    if site.operands:
        yield "operands", operands(site)
    if worked := work(site):
        yield "work", worked
    if measure is not None and (time := expected(site, measure)):
        yield "time", time
    if site.covered_by:
        yield "part of", site.covered_by
    if parts := [s for s in report.sites if s.covered_by == site.id]:
        yield "covers", ", ".join(f"{s.kind} {s.id}" for s in parts)
    group = next(
        group for group in merge(report.sites) if any(s is site or s.id == site.id for s in group.sites)
    )
    if len(group.sites) > 1:
        yield "like it", f"{sites_text(len(group.sites))} in all: {group.module}"


def _code(operations: Iterable[Operation]) -> Iterator[Text]:
    """The operations under the user's lines that they come from."""
    place = None
    for operation in operations:
        if (operation.location, operation.source) != place:
            place = operation.location, operation.source
            if operation.location:
                yield Text(f"  {short_location(operation.location)}: ", "dim") + Text(
                    operation.source, "bold"
                )
        yield Text(f"      {operation.text}")


def _guard(judgement: Judgement) -> tuple[Text, str, str]:
    evidence = judgement.detail or judgement.evidence
    if judgement.verdict is Verdict.UNKNOWN:
        evidence = f"checked at run time: {judgement.residual or judgement.guard}"
    return Text(judgement.verdict.value, _COLOURS[judgement.verdict]), judgement.guard, evidence


def _heading(console: Console, text: str) -> None:
    console.print(Text(f"\n{text}", "bold"))


def _print_rows(console: Console, rows: Iterable[tuple[str | Text, ...]]) -> None:
    grid = Table.grid(padding=(0, 2))
    for number, row in enumerate(rows):
        if not number:
            grid.add_column("")
            for _ in row:
                grid.add_column(overflow="fold")
        grid.add_row("", *(Text(part) if isinstance(part, str) else part for part in row))
    console.print(grid)
