"""The transformer block that tests of the doors rewrite: every family of layers but FP8, all of it sites."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .contract import check

BF16 = torch.bfloat16
WIDTH = 64
KINDS = ["linear", "sdpa", "linear"]


class Block(nn.Module):
    """[B, L, 64] to the same: a fused attention between two linear layers."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), heads

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def block(seed: int = 0, dtype: torch.dtype = BF16) -> Block:
    torch.manual_seed(seed)
    return Block().eval().to(dtype)


def tokens(batch: int = 2, length: int = 5, seed: int = 0, dtype: torch.dtype = BF16) -> Tensor:
    generator = torch.Generator().manual_seed(100 + seed)
    return torch.randn(batch, length, WIDTH, generator=generator).to(dtype)


def right(fast: Any, plain: nn.Module, x: Tensor | None = None) -> None:
    """The rewritten model's result holds the contract against ``plain``, eager and in float64."""
    x = tokens() if x is None else x
    with torch.no_grad():
        check(fast(x), plain(x), copy.deepcopy(plain).double()(x.double()))


def kinds(report: Any) -> list[str]:
    return [site.kind for site in report.matched]
