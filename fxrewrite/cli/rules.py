"""``fxrewrite rules``: what is looked for."""

from __future__ import annotations

import inspect
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import UsageError, require_torch
from .errors import told_in_one_line


@click.command()
@click.argument("name", required=False)
def rules(name: str | None) -> None:
    """List the rules, or show the code of the one called NAME: its pattern, guards and replacement."""
    with told_in_one_line(debug=False):
        require_torch()
        from ..patterns import DEFAULT

        if name is not None:
            click.echo(_code(DEFAULT, name))
            return
    console = Console()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("family", "rule", "captures", "finds"):
        table.add_column(column, overflow="fold")
    for rule in DEFAULT:
        captures = [p for p in inspect.signature(rule.pattern).parameters if p != "op"]
        table.add_row(*map(Text, (rule.kind, rule.name, ", ".join(captures), _first_line(rule))))
    with console.capture() as capture:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


def _code(known: Any, name: str) -> str:
    found = next((type(rule) for rule in known if rule.name == name), None)
    if found is None:
        raise UsageError(f"no rule {name!r}: expected one of {', '.join(rule.name for rule in known)}")
    return inspect.getsource(found).rstrip()


def _first_line(rule: Any) -> str:
    return (inspect.getdoc(type(rule)) or "").split("\n\n")[0].replace("\n", " ")
