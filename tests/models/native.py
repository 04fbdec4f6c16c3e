"""Modules of torch.nn itself."""

import torch
from torch import nn

from tests.support.modules import noise

from . import MODELS


@MODELS.add("nn-transformer-encoder", quick=True, fused=2, linear=8, opaque="_transformer_encoder_layer_fwd")
def _():
    layer = nn.TransformerEncoderLayer(48, 3, 80, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    padding = torch.zeros(2, 10, dtype=torch.bool)
    padding[1, 7:] = True
    return model, (noise(2, 10, 48, seed=1),), {"src_key_padding_mask": padding}


class SelfAttention(nn.Module):
    def __init__(self, need_weights: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(48, 3, batch_first=True)
        self.norm = nn.LayerNorm(48)
        self.need_weights = need_weights

    def forward(self, x, mask):
        y, weights = self.attention(x, x, x, attn_mask=mask, need_weights=self.need_weights)
        y = self.norm(x + y)
        return (y, weights) if self.need_weights else y


@MODELS.add("nn-multihead-attention", quick=True, fused=1, linear=2, opaque="multi_head_attention_forward")
def _():
    mask = torch.full((10, 10), float("-inf")).triu(1)
    return SelfAttention(False), (noise(2, 10, 48, seed=1), mask), {}


@MODELS.add("nn-multihead-attention-weights", manual=1, linear=2, opaque="multi_head_attention_forward")
def _():
    mask = torch.full((10, 10), float("-inf")).triu(1)
    return SelfAttention(True), (noise(2, 10, 48, seed=1), mask), {}


@MODELS.add("mlp-spellings", quick=True, linear=4)
def _():
    class Layers(nn.Module):
        """Calls of F.linear, one of them on a computed weight; matmul, addmm and 1x1 convolution beside."""

        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(32, 80), nn.Linear(80, 32, bias=False)
            self.kn = nn.Parameter(torch.empty(32, 32))
            self.nk = nn.Parameter(torch.empty(32, 32))
            self.bias = nn.Parameter(torch.empty(32))
            self.point = nn.Conv1d(32, 32, 1)

        def forward(self, x):
            x = x + self.down(nn.functional.gelu(self.up(x)))
            x = x + (x @ self.kn + self.bias)
            x = x + torch.addmm(self.bias, x.flatten(0, 1), self.nk.t()).view_as(x)
            x = x + self.point(x.transpose(1, 2)).transpose(1, 2)
            x = x + nn.functional.linear(x, self.kn + 0.1 * self.nk, self.bias)
            return nn.functional.linear(x, self.up.weight[:32])

    return Layers().bfloat16(), (noise(3, 7, 32, seed=1, dtype=torch.bfloat16),), {}
