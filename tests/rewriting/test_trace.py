"""FXREWRITE_TRACE: who is traced, and what is told."""

from __future__ import annotations

import pytest
import torch

from tests.support.graphs import rewritten

Q = torch.randn(1, 2, 8, 16)


def attention(q: torch.Tensor, dim: int = -1) -> torch.Tensor:
    return (q @ q.mT).softmax(dim) @ q


def traced(monkeypatch, capfd, value, function=lambda q: attention(q)):
    monkeypatch.setenv("FXREWRITE_TRACE", value)
    rewritten(function, Q)
    return [line for line in capfd.readouterr().err.splitlines() if line.startswith("fxrewrite trace: ")]


@pytest.mark.parametrize("value", ["", "0"])
def test_off(monkeypatch, capfd, value):
    assert traced(monkeypatch, capfd, value) == []


def test_one_rule_tells_each_anchor(monkeypatch, capfd):
    lines = traced(monkeypatch, capfd, "WrittenAttention")
    assert len(lines) == 2
    assert all("WrittenAttention at " in line for line in lines)
    assert lines[0].split(" at ")[1].startswith("matmul:")
    assert "matched; 3 operators replaced" in lines[1]


def test_one_node(monkeypatch, capfd):
    assert len(traced(monkeypatch, capfd, "WrittenAttention,matmul_1")) == 1
    assert traced(monkeypatch, capfd, "WrittenAttention,absent") == []


def test_all_rules(monkeypatch, capfd):
    names = {line.split()[2] for line in traced(monkeypatch, capfd, "1")}
    assert {"WrittenAttention", "Fp8Linear"} <= names


def test_how_far_a_rule_got(monkeypatch, capfd):
    lines = traced(monkeypatch, capfd, "WrittenAttention,matmul_1", lambda q: attention(q, dim=-2))
    (line,) = lines
    assert (
        " operators in, expected softmax with {'dim': -1}, found softmax = aten.softmax.int(..., -2)" in line
    )


def test_a_guard_that_does_not_hold(monkeypatch, capfd):
    (line,) = traced(
        monkeypatch,
        capfd,
        "FusedAttention",
        lambda q: torch.nn.functional.scaled_dot_product_attention(q, q, q, None, 0.5),
    )
    assert "guard refuted: " in line


def test_an_unknown_rule_is_named(monkeypatch, capfd):
    (line,) = traced(monkeypatch, capfd, "Attention")
    assert "no rule 'Attention': expected 1 (all) or one of FusedAttention" in line
