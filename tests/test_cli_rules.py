"""``fxrewrite rules``."""

from __future__ import annotations

from click.testing import CliRunner
from fxrewrite.patterns import DEFAULT

from fxrewrite.cli import main

from .support.command_line import fails


def test_every_rule_is_listed_with_its_family_and_captures():
    result = CliRunner().invoke(main, ["rules"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines)
    families = [line for line in lines if not line.startswith(" ")]
    assert families == list(dict.fromkeys(rule.kind for rule in DEFAULT))
    heads = [line.strip().split("(")[0] for line in lines if line.startswith("  ") and line[2] != " "]
    assert heads == [rule.name for rule in DEFAULT]
    written = lines.index("  WrittenAttention(q, k, v, sinks)")
    assert lines[written + 1].startswith("      softmax(q·kᵀ")


def test_the_code_of_one():
    result = CliRunner().invoke(main, ["rules", "FusedAttention"])
    assert result.exit_code == 0
    assert result.stdout.startswith("class FusedAttention(")
    for part in ("def pattern(self, op", "def guards(self, m", "def replace(self, op"):
        assert part in result.stdout


def test_an_unknown_rule():
    fails(CliRunner().invoke(main, ["rules", "Conv"]), "no rule 'Conv': expected one of ", "FusedAttention")
