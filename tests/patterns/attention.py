"""Operands, masks and a softmax by hand, for the tests of attention's rules."""

from __future__ import annotations

import torch

INF = float("inf")


def t(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 * seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def qkv(dtype=torch.float32, batch=(2, 4), queries=6, keys=7, width=8):
    return (
        t(*batch, queries, width, seed=1, dtype=dtype),
        t(*batch, keys, width, seed=2, dtype=dtype),
        t(*batch, keys, width, seed=3, dtype=dtype),
    )


Q, K, V = qkv()
KEEP = (torch.rand(6, 7, generator=torch.Generator().manual_seed(0)) < 0.7) | torch.eye(6, 7).bool()
BIAS = t(6, 7, seed=4)
HEADWISE = t(1, 4, 6, 7, seed=5)
BATCHWISE = t(2, 1, 1, 7, seed=6)


def by_hand(scores, most):
    e = (scores - most(scores)).exp()
    return e / e.sum(-1, keepdim=True)
