"""The guide names what there is."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from fxrewrite.cli import main
from fxrewrite.report import Reason

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("reason", [reason.name for reason in Reason])
def test_every_reason_is_explained(reason):
    assert f"| `{reason}` |" in (DOCS / "guide" / "report.md").read_text()


def test_every_command_is_listed_and_its_options_exist():
    text = (DOCS / "guide" / "cli.md").read_text()
    assert isinstance(main, click.Group)
    assert set(re.findall(r"^\| `fxrewrite (\w+)", text, re.MULTILINE)) == set(main.commands)
    known = {name for command in main.commands.values() for p in command.params for name in p.opts}
    assert set(re.findall(r"--[a-z][\w-]+", text)) <= known


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r"[\w/]+\.md", (DOCS.parent / "mkdocs.yml").read_text()))
    assert {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} == listed
