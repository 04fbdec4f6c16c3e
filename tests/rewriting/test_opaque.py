"""Operators that hide sites, and graphs that could not be captured: reported, never silent."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import fxrewrite
from fxrewrite import backend
from fxrewrite.errors import CaptureError
from fxrewrite.report import Reason


def test_fused_attention_of_the_framework_is_reported():
    class Model(nn.Module):
        def forward(self, x, qkv, bias, proj, proj_bias):
            return torch._native_multi_head_attention(
                x, x, x, 16, 2, qkv, bias, proj, proj_bias, None, False
            )[0]

    tensors = [torch.randn(*shape) for shape in ((2, 5, 16), (48, 16), (48,), (16, 16), (16,))]
    with torch.no_grad():
        report = fxrewrite.analyze(Model(), tuple(tensors))
    assert {kind: sum(c.values()) for kind, c in report.counts().items()} == {"linear": 2, "sdpa": 1}
    assert {site.code for site in report.sites} == {Reason.OPAQUE}
    assert all("_native_multi_head_attention hides it" in site.reason for site in report.sites)


def test_calls_of_a_graph_that_cannot_be_captured_are_rejected_sites(monkeypatch):
    def fail(gm):
        raise CaptureError("no way")

    monkeypatch.setattr(backend.capture, "from_dynamo", fail)

    class Model(nn.Module):
        def forward(self, x, w):
            return F.scaled_dot_product_attention(x, x, x) + F.linear(x, w)

    x, w = torch.randn(1, 2, 4, 8), torch.randn(8, 8)
    fast = fxrewrite.rewrite(Model())
    with torch.no_grad():
        assert torch.equal(fast(x, w), Model()(x, w))
    assert sorted(site.kind for site in fast.report.rejected) == ["linear", "sdpa"]
    assert all(site.reason == "OPAQUE: the graph could not be captured: no way" for site in fast.report.sites)
    assert any("stays as it is: no way" in note for note in fast.report.notes)
