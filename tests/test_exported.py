"""The export door: programs in, programs out, which save and load."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

import fxrewrite
from tests.support.contract import check


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 32).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT * 32**-0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(x.shape))


@pytest.fixture
def program():
    torch.manual_seed(0)
    model = Attention().bfloat16().eval()
    x = torch.randn(2, 9, 64).bfloat16()
    with torch.no_grad():
        return torch.export.export(model, (x,)), model, x


def test_a_program_is_rewritten_into_a_program(program):
    exported, model, x = program
    before = exported.graph_module.code
    fast = fxrewrite.rewrite(exported)
    assert isinstance(fast, torch.export.ExportedProgram)
    assert fast.report.counts() == {"linear": {"matched": 2}, "sdpa": {"matched": 1}}
    assert "fxrewrite.sdpa" in fast.graph_module.code
    assert exported.graph_module.code == before
    assert list(fast.state_dict) == list(exported.state_dict)
    with torch.no_grad():
        eager, result = model(x), fast.module()(x)
        wide = Attention().double().eval()
        wide.load_state_dict({name: t.double() for name, t in model.state_dict().items()})
        check(result, eager, wide(x.double()))


def test_what_forward_writes_is_still_written(program):
    exported, _, x = program
    module = fxrewrite.rewrite(exported).module()
    with torch.no_grad():
        module(x)
        module(x)
    assert module.calls == 2


def test_saved_and_loaded_in_a_fresh_process(program, tmp_path):
    exported, _, x = program
    fast = fxrewrite.rewrite(exported)
    with torch.no_grad():
        want = fast.module()(x)
    torch.export.save(fast, tmp_path / "fast.pt2")
    torch.save((x, want), tmp_path / "io.pt")
    code = (
        "import sys, torch, fxrewrite\n"
        "x, want = torch.load(sys.argv[2])\n"
        "with torch.no_grad():\n"
        "    assert torch.equal(torch.export.load(sys.argv[1]).module()(x), want)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "fast.pt2"), str(tmp_path / "io.pt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_dynamic_sizes_stay_dynamic(program):
    _, model, x = program
    length = torch.export.Dim("length", min=2, max=64)
    with torch.no_grad():
        exported = torch.export.export(model, (x,), dynamic_shapes=({1: length},))
        fast = fxrewrite.rewrite(exported)
        assert not fast.report.rejected
        for tokens in (2, 9, 33):
            y = torch.randn(2, tokens, 64).bfloat16()
            difference = (fast.module()(y) - model(y)).float().norm() / model(y).float().norm()
            assert difference < 2e-2


def test_a_program_is_analysed(program):
    exported, _, _ = program
    report = fxrewrite.analyze(exported)
    assert report.predicted
    assert len(report.matched) == 3
    assert "fxrewrite" not in exported.graph_module.code


def test_example_inputs_do_not_go_with_a_program(program):
    exported, _, x = program
    with pytest.raises(fxrewrite.UsageError, match="its own example inputs"):
        fxrewrite.rewrite(exported, (x,))


def test_a_fault_inside_leaves_the_program_as_it_is_and_is_told(program, monkeypatch, caplog):
    def faulty(graph, *rest, **named):
        graph.graph.erase_node(graph.graph.output_node())
        raise KeyError("a fault of the pass")

    exported, model, x = program
    monkeypatch.setattr("fxrewrite.exported.rewrite_graph", faulty)
    with pytest.raises(KeyError):  # the tests of this repository are strict
        fxrewrite.rewrite(exported)
    monkeypatch.setenv("FXREWRITE_STRICT", "0")
    fast = fxrewrite.rewrite(exported)
    with torch.no_grad():
        assert torch.equal(fast.module()(x), model(x))
    assert "KeyError: 'a fault of the pass'" in fast.report.notes[0]
    assert "a program stays as it is" in caplog.text
