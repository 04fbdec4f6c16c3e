"""The report in Markdown, as GitHub and GitLab show it: for pull requests and CI summaries."""

from __future__ import annotations

from .findings import Findings
from .merge import Group, merge
from .table import By, outcome, sections
from .words import coverage, operands, short_location, summary

_COLUMNS = ("", "sites", "where", "operands", "implementation or reason")


def render_markdown(report: Findings, *, by: By = "family") -> str:
    """A summary, a table in sections by family or by block of the model, and the notes, folded."""
    lines = [f"**{summary(report)}** {coverage(report)}".rstrip()]
    for name, section in sections(merge(report.listed), by):
        found = [site for group in section for site in group.sites]
        lines += ["", f"#### {_text(name)}: {sum(s.matched for s in found)} of {len(found)} matched", ""]
        lines += [f"| {' | '.join(_COLUMNS)} |", "|---|--:|---|---|---|"]
        lines += [_row(group) for group in section]
    if report.notes:
        lines += ["", f"<details><summary>{len(report.notes)} notes</summary>", ""]
        lines += [f"- {_text(note)}" for note in report.notes]
        lines += ["", "</details>"]
    return "\n".join(lines)


def _row(group: Group) -> str:
    site = group.first
    where = [
        _code(group.module or "(no submodule)"),
        *(_code(short_location(p)) for p in group.locations[:3]),
    ]
    if len(group.locations) > 3:
        where.append(f"and {len(group.locations) - 3} more places")
    cells = (
        "✅" if site.matched else "❌",
        str(len(group.sites)),
        "<br>".join(where),
        _code(operands(site)),
        "<br>".join(map(_text, outcome(group))),
    )
    return f"| {' | '.join(cells)} |"


def _text(text: str) -> str:
    for character in "\\`*_[]<>|":
        text = text.replace(character, f"\\{character}")
    return text.replace("\n", " ")


def _code(text: str) -> str:
    return f"`{text.replace('`', chr(39)).replace('|', chr(92) + '|')}`" if text else ""
