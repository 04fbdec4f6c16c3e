"""Weights inside of tensor subclasses: the tensors inside become part of the captured graph."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxrewrite

pytestmark = pytest.mark.usefixtures("any_kernel")
BF16 = torch.bfloat16
X = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(1)).to(BF16)


def model() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 64))
    return layers.to(BF16).eval().requires_grad_(False)


def hold(quantised: nn.Module) -> None:
    fast = fxrewrite.rewrite(quantised, (X,))
    with torch.no_grad():
        ours, wanted = fast(X), quantised(X)
    sites = [site for site in fast.report.sites if site.kind == "fp8_matmul"]
    assert [site.status for site in sites] == ["matched"] * 2, [site.reason for site in sites]
    torch.testing.assert_close(ours, wanted, rtol=0.02, atol=0.02)


def test_torchao_weight_only():
    quantization = pytest.importorskip("torchao.quantization")
    quantised = model()
    quantization.quantize_(quantised, quantization.Float8WeightOnlyConfig())
    hold(quantised)


def test_quanto():
    quanto = pytest.importorskip("optimum.quanto")
    quantised = model()
    quanto.quantize(quantised, weights=quanto.qfloat8)
    quanto.freeze(quantised)
    hold(quantised)
