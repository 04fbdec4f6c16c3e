"""``fxrewrite rules``."""

from __future__ import annotations

from click.testing import CliRunner
from fxrewrite.patterns import DEFAULT

from fxrewrite.cli import main

from .support.command_line import fails


def test_every_rule_is_listed_with_its_family_and_captures():
    result = CliRunner().invoke(main, ["rules"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["family", "rule", "captures", "finds"]
    assert [line.split()[1] for line in lines[1:]] == [rule.name for rule in DEFAULT]
    written = next(line for line in lines if "WrittenAttention" in line)
    assert written.split()[:6] == ["sdpa", "WrittenAttention", "q,", "k,", "v,", "sinks"]


def test_the_code_of_one():
    result = CliRunner().invoke(main, ["rules", "FusedAttention"])
    assert result.exit_code == 0
    assert result.stdout.startswith("class FusedAttention(")
    for part in ("def pattern(self, op", "def guards(self, m", "def replace(self, op"):
        assert part in result.stdout


def test_an_unknown_rule():
    fails(CliRunner().invoke(main, ["rules", "Conv"]), "no rule 'Conv': expected one of ", "FusedAttention")
