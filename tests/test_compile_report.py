"""What ``torch.compile(model, backend="fxrewrite")`` tells: the report, and the log."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

import fxrewrite
from fxrewrite import capture
from fxrewrite.errors import CaptureError

X = torch.randn(2, 64, dtype=torch.bfloat16)


@pytest.fixture(autouse=True)
def _anew():
    torch.compiler.reset()
    fxrewrite.compile_report(reset=True)


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="fxrewrite", options={"then": "eager"})


class Broken(nn.Module):
    """Two graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x)


def test_all_graphs_of_all_models():
    with torch.no_grad():
        compiled(Broken().to(torch.bfloat16))(X)
        compiled(nn.Linear(64, 32).to(torch.bfloat16))(X)
    report = fxrewrite.compile_report()
    assert [site.kind for site in report.sites] == ["linear"] * 3
    assert [capture.name for capture in report.captures] == ["g0", "g1", "g2"]
    assert not report.predicted


def test_another_shape_counts_once():
    with torch.no_grad():
        fast = compiled(nn.Linear(64, 32).to(torch.bfloat16))
        fast(X)
        fast(X.repeat(3, 1))
    assert [c.compilations for c in fxrewrite.compile_report().captures] == [2]


def test_reset_leaves_what_was_returned():
    with torch.no_grad():
        compiled(nn.Linear(64, 32).to(torch.bfloat16))(X)
    report = fxrewrite.compile_report(reset=True)
    assert len(report.sites) == 1
    assert fxrewrite.compile_report().sites == []


def test_a_capture_that_fails_is_noted_and_logged(monkeypatch, caplog):
    def fails(gm):
        raise CaptureError("no such luck")

    monkeypatch.setattr(capture, "from_dynamo", fails)
    with torch.no_grad():
        compiled(nn.Linear(64, 32).to(torch.bfloat16))(X)
    report = fxrewrite.compile_report()
    assert [note for note in report.notes if "stays as it is: no such luck" in note]
    assert [s.code.name for s in report.rejected] == ["OPAQUE"]
    assert [r.levelname for r in caplog.records if "stays as it is: no such luck" in r.message] == ["WARNING"]


def test_sites_are_logged(caplog):
    with torch.no_grad(), caplog.at_level(logging.DEBUG, "fxrewrite"):
        compiled(nn.Linear(64, 32).to(torch.bfloat16))(X)
    messages = [r.message for r in caplog.records if r.name == "fxrewrite"]
    assert messages[0].startswith("g0: ")
    assert messages[0].endswith("linear 1 of 1") or "linear 0 of 1" in messages[0]
    assert messages[1].startswith("g0.0 linear ")


@pytest.mark.slow
def test_torch_logs():
    code = """
        import torch
        model = torch.nn.Linear(64, 32).to(torch.bfloat16)
        with torch.no_grad():
            torch.compile(model, backend="fxrewrite", options={"then": "eager"})(torch.randn(2, 64, dtype=torch.bfloat16))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, "TORCH_LOGS": "+fxrewrite"},
    )
    assert "g0.0 linear " in done.stderr
