"""Errors of replaced sites: measured on what they get in the model, wrong replacements seen."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxrewrite
from fxrewrite.errors import CaptureError
from fxrewrite.measure import verify as module
from fxrewrite.measure.float64 import InFloat64
from fxrewrite.measure.verify import Errors, verify
from fxrewrite.report import Site
from fxrewrite.rewriting import Options
from tests.support.graphs import any_kernel

__all__ = ["any_kernel"]


class Block(nn.Module):
    """Attention between two linears."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT * 0.25).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class Doubled(fxrewrite.Rule):
    """A wrong rule: linear(x) becomes linear(2x)."""

    kind = "linear"

    def pattern(self, op, x, weight, bias):
        return op.linear(x, weight, bias)

    def replace(self, op, m):
        return op.fxrewrite.linear(op.aten.mul.Tensor(m["x"], 2.0), m["weight"], m["bias"])


@pytest.mark.usefixtures("any_kernel")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_sound_model_holds(dtype):
    model, x = Block().to(dtype).eval(), torch.randn(2, 8, 64, dtype=dtype)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    done = verify(model, (x,))
    assert sorted(e.site.kind for e in done.errors) == ["linear", "linear", "sdpa"]
    assert done.failed == []
    unit = torch.finfo(dtype).eps
    for error in done.errors:
        assert 0 < error.ours < 2 * unit
        assert 0 < error.original < 2 * unit
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


@pytest.mark.usefixtures("any_kernel")
def test_a_wrong_replacement_comes_first():
    x = torch.randn(2, 8, 64)
    done = verify(Block().eval(), (x,), options=Options(rules=(Doubled(),)))
    assert len(done.failed) == 2
    assert all(error.ours > 0.3 for error in done.failed)
    assert done.errors[0].ratio > 1e3


def test_float64_reaches_inside():
    x = torch.randn(64, 64, dtype=torch.bfloat16)
    with InFloat64():
        out = F.softmax(x.float() @ x.float().mT, dim=-1, dtype=torch.float32).to(torch.bfloat16)
    assert out.dtype == torch.float64
    exact = (x.double() @ x.double().mT).softmax(-1)
    assert torch.allclose(out, exact, rtol=1e-12)


def test_float64_refuses_writes():
    with InFloat64(), pytest.raises(NotImplementedError, match="writes in place"):
        torch.ones(2).add_(1)


def error(**given: object) -> Errors:
    fields = {"original": 1e-3, "ours": 1e-3, "apart": 1e-4, "rounding": 1e-4, "same_places": True, **given}
    return Errors(Site("g0.0", "linear", "matched", "Linear"), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "holds", "ratio"),
    [
        ({}, True, 1.0),
        ({"ours": 1.24e-3}, True, 1.24),
        ({"ours": 1.26e-3}, False, 1.26),
        ({"original": 0.0, "ours": 1e-4}, True, 1.0),
        ({"original": 0.0, "ours": 2e-4}, False, 2.0),
        ({"apart": 0.0, "ours": 1.0, "original": 1.0}, True, 1.0),
        ({"same_places": False}, False, 1.0),
        ({"problem": "no float64"}, False, 1.0),
    ],
)
def test_what_holds(given, holds, ratio):
    found = error(**given)
    assert found.holds == holds
    assert math.isclose(found.ratio, ratio)


@pytest.mark.usefixtures("any_kernel")
def test_nan_at_other_places_does_not_hold(monkeypatch):
    real = module.visit_sites

    def spoiled(model, args, kwargs, options, visit):
        def visit_spoiled(isolated, values):
            after = isolated.after.forward
            isolated.after.forward = lambda *v: after(*v).index_fill(0, torch.tensor([0]), math.nan)
            visit(isolated, values)

        return real(model, args, kwargs, options, visit_spoiled)

    monkeypatch.setattr(module, "visit_sites", spoiled)
    assert [e.same_places for e in verify(nn.Linear(32, 32), (torch.randn(4, 32),)).errors] == [False]


def test_nothing_captured():
    class Opaque(nn.Module):
        @torch.compiler.disable
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with pytest.raises(CaptureError, match="Opaque: no graph was captured"):
        verify(Opaque(), (torch.randn(2),))
