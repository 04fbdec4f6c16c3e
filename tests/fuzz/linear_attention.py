"""Random attentions that are linear in the length, and what only looks like one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from .draw import BF16, F32, Choices, Growing, Inputs, Module

FEATURES: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "clamp": lambda t: t.clamp(min=0),
    "method": lambda t: t.relu(),
    "leaky": lambda t: F.leaky_relu(t, 0.1),  # others
    "elu": lambda t: F.elu(t) + 1,
    "relu6": F.relu6,
    "none": lambda t: t,
}


def _plain(q: Tensor, k: Tensor, v: Tensor, eps: float) -> Tensor:
    """[B, H, N, D], the normaliser written apart."""
    return (q @ (k.mT @ v)) / (q @ k.sum(-2, keepdim=True).mT + eps)


def _weights_first(q: Tensor, k: Tensor, v: Tensor, eps: float) -> Tensor:
    weights = q @ k.mT
    return (weights / (weights.sum(-1, keepdim=True) + eps)) @ v


def _padded(q: Tensor, k: Tensor, v: Tensor, eps: float, value: float = 1.0) -> Tensor:
    """A column of ones beside the values gives the normaliser."""
    out = q @ (k.mT @ F.pad(v, (0, 1), value=value))
    return out[..., :-1] / (out[..., -1:] + eps)


def _channel_first(q: Tensor, k: Tensor, v: Tensor, eps: float, value: float = 1.0) -> Tensor:
    """SANA's: [B, H, D, N] inside."""
    padded = F.pad(v.mT, (0, 0, 0, 1), value=value)
    out = (padded @ k) @ q.mT
    return (out[:, :, :-1] / (out[:, :, -1:] + eps)).mT


FORMS: dict[str, Callable[..., Tensor]] = {
    "plain": _plain,
    "weights first": _weights_first,
    "padded": _padded,
    "channel first": _channel_first,
    "padded by 2": lambda q, k, v, eps: _padded(q, k, v, eps, 2.0),
    "padded by 0": lambda q, k, v, eps: _channel_first(q, k, v, eps, 0.0),
    "no eps": lambda q, k, v, eps: _plain(q, k, v, 0.0),
    "sum of queries": lambda q, k, v, eps: (q @ (k.mT @ v)) / (q.sum(-1, keepdim=True) + eps),
    "not normalised": lambda q, k, v, eps: q @ (k.mT @ v),
    "scaled": lambda q, k, v, eps: _plain(q * 0.5, k, v, eps),
}


def attention(c: Choices) -> Module:
    dtype, inputs = c.of("dtype", [BF16, F32], [1, 2]), Inputs(c)
    batch, heads = Growing(c.of("B", [1, 2])), c.of("H", [1, 2, 3])
    tokens, dim = Growing(max(1, c.size("N"))), c.of("D", [4, 8, 16, 32, 33])
    dim_v = c.of("Dv", [dim, 16], [4, 1])
    form = c.of("form", list(FORMS), [4, 3, 4, 4, 1, 1, 1, 1, 1, 1])
    # a weight of zero times infinity is NaN where the weights are formed, and is not where they are not
    finite = form == "weights first"
    q = inputs.normal("q", [batch, heads, tokens, dim], dtype, finite=finite)
    k = inputs.normal("k", [batch, heads, tokens, dim], dtype, finite=finite)
    v = inputs.normal("v", [batch, heads, tokens, dim_v], dtype, finite=finite)
    names = list(FEATURES)
    of_q = FEATURES[c.of("of q", names, [6, 1, 2, 0.5, 0.5, 0.5, 0.5])]
    of_k = FEATURES[c.of("of k", names, [6, 1, 2, 0.5, 0.5, 0.5, 0.5])]
    eps = c.of("eps", [1e-15, 1e-6, 1e-2])
    wide = c.chance("in float", 0.4)

    def function(*t: Tensor) -> Any:
        operands = of_q(t[q]), of_k(t[k]), t[v]
        if wide:
            operands = tuple(o.float() for o in operands)
        return FORMS[form](*operands, eps).to(dtype)

    return Module(function, inputs)
