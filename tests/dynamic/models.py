"""Small models whose sizes may change from call to call, and exact results to hold them against."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn

from tests.support import float64

BF16 = torch.bfloat16


class Decoder(nn.Module):
    """Attention over tokens [batch, tokens, width], causal by a mask from ``arange``, and a feed-forward."""

    def __init__(self, width: int = 64, heads: int = 2, dtype: torch.dtype = BF16) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.to(dtype).requires_grad_(False)

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        at = torch.arange(tokens, device=x.device)
        seen = (at[None, :] <= at[:, None])[None, None]
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(F.gelu(self.up(x)))


class Written(nn.Module):
    """Attention written out, without a mask."""

    def forward(self, q, k, v):
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


class LinearAttention(nn.Module):
    """SANA's linear attention over [batch, heads, channels, tokens]."""

    def forward(self, q, k, v):
        q, k, v = F.relu(q).float(), F.relu(k).float(), F.pad(v.float(), (0, 0, 0, 1), value=1.0)
        out = (v @ k.transpose(-1, -2)) @ q
        return out[:, :, :-1] / (out[:, :, -1:] + 1e-6)


class Layer(nn.Module):
    """One linear layer."""

    def __init__(self, width: int = 64, dtype: torch.dtype = BF16) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width).to(dtype).requires_grad_(False)

    def forward(self, x):
        return self.linear(x)


def exactly(model: nn.Module, *inputs: torch.Tensor) -> torch.Tensor:
    """The model's result computed in float64."""
    return float64.run_float64(copy.deepcopy(model), inputs, {})


def is_as_exact_as_eager(got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> bool:
    """Is the RMS error against float64 at most 1.25 times eager's, or a rounding of the result's size?"""
    if got.shape != eager.shape or got.dtype != eager.dtype:
        return False
    if not got.numel():
        return True
    scale = float(exact.square().mean().sqrt())
    mine, theirs = (float((t.double() - exact).square().mean().sqrt()) for t in (got, eager))
    return mine <= max(1.25 * theirs, torch.finfo(got.dtype).eps * scale / 4)
