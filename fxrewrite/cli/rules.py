"""``fxrewrite rules``: what is looked for."""

from __future__ import annotations

import inspect
import itertools
import shutil
from typing import Any

import click

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
    width = min(shutil.get_terminal_size().columns, 100)
    for family, known in itertools.groupby(DEFAULT, lambda rule: rule.kind):
        click.echo(family)
        for rule in known:
            captures = [p for p in inspect.signature(rule.pattern).parameters if p != "op"]
            click.echo(_wrapped(f"{rule.name}({', '.join(captures)})", width, "  ", 8))
            click.echo(_wrapped(_first_line(rule).replace("``", ""), width, "      ", 6))


def _wrapped(text: str, width: int, indent: str, further: int) -> str:
    return click.wrap_text(text, width, initial_indent=indent, subsequent_indent=" " * further)


def _code(known: Any, name: str) -> str:
    found = next((type(rule) for rule in known if rule.name == name), None)
    if found is None:
        raise UsageError(f"no rule {name!r}: expected one of {', '.join(rule.name for rule in known)}")
    return inspect.getsource(found).rstrip()


def _first_line(rule: Any) -> str:
    return (inspect.getdoc(type(rule)) or "").split("\n\n")[0].replace("\n", " ")
