"""What a case is, the registry, and what most cases are made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.support.modules import noise

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
INF = float("inf")


@dataclasses.dataclass(frozen=True)
class Case:
    """A value case: see ``tests.cases``."""

    name: str
    build: Callable[[], tuple[nn.Module, tuple, dict[str, Any]]]
    never: tuple[str, ...] = ()


VALUES: dict[str, Case] = {}
BEHAVIOURS: dict[str, Callable[[Callable[..., Any]], None]] = {}


def value(never: tuple[str, ...] = ()):
    """Decorator: the builder below is a value case, and kinds named in ``never`` must not be matched."""

    def register(build):
        VALUES[build.__name__] = Case(build.__name__, build, never)
        return build

    return register


def behaviour(check):
    """Decorator: the function below is a behaviour case."""
    BEHAVIOURS[check.__name__] = check
    return check


class Function(nn.Module):
    """A module whose forward is a plain function of (module, *inputs)."""

    def __init__(self, function, **tensors):
        super().__init__()
        self.function = function
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)


def qkv(dtype=BF16, batch=2, heads=3, queries=12, keys=12, width=32):
    shapes = ((queries, 0), (keys, 1), (keys, 2))
    return tuple(noise(batch, heads, length, width, seed=seed, dtype=dtype) for length, seed in shapes)


def attention(q, k, v, scale=0.2, mask=None):
    scores = q @ k.transpose(-2, -1) * scale
    return (scores if mask is None else scores + mask).softmax(-1) @ v
