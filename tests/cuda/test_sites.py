"""Models on (fake) CUDA tensors: the same sites as on the CPU, with CUDA implementations."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.models.params import models
from tests.patterns.test_linear_attention import sana_video, written
from tests.support.devices import CUDA_KERNELS, counted, on_fake, sites


@models()
def test_the_sites_are_those_of_the_cpu(fake_cuda, model):
    built = model.make()
    try:
        twin = on_fake("cuda", *built)
    except TypeError as subclass:
        pytest.skip(str(subclass))
    here, there = sites(*built), sites(*twin)
    assert counted(here) == counted(there)
    for site in there:
        assert site.reason or site.implementation in CUDA_KERNELS
        assert "is on cuda" not in site.reason
        assert all(refusal.implementation in CUDA_KERNELS for refusal in site.refusals)


class Video(nn.Module):
    """SANA-Video's linear attention with its rotary embedding."""

    def forward(self, *inputs):
        return sana_video(written)(*inputs)


@pytest.mark.parametrize("layout", ["widths together", "tokens together"])
def test_features_are_turned_where_their_pairs_lie_together(fake_cuda, layout):
    """Elsewhere the op takes them turned."""
    batch, tokens, heads, width = 1, 40, 2, 16
    if layout == "widths together":
        qkv = [torch.zeros(batch, tokens, heads, width).bfloat16() for _ in range(3)]
    else:
        qkv = [torch.zeros(batch, heads, width, tokens).bfloat16().permute(0, 3, 1, 2) for _ in range(3)]
    turn = [torch.ones(1, tokens, 1, width) for _ in range(2)]
    (site,) = sites(*on_fake("cuda", Video(), (*qkv, *turn), {}))
    assert site.implementation == "cuda:channels"
    assert ("cos" in site.operands) == (layout == "widths together")
    assert ("norm_q" in site.operands) == (layout == "tokens together")
