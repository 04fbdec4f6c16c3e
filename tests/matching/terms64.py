"""The meaning of terms, by plain torch: what a reading says, computed."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from fxrewrite.matching.terms import Term
from fxrewrite.matching.value import View, apply_dims
from fxrewrite.ops.linear import ACTIVATIONS


class Values(fx.Interpreter):
    """The value of every node of a graph for given inputs."""

    def __init__(self, gm: fx.GraphModule, *inputs: Any) -> None:
        super().__init__(gm)
        self.of: dict[fx.Node, Any] = {}
        self.run(*inputs)

    def run_node(self, n: fx.Node) -> Any:
        self.of[n] = super().run_node(n)
        return self.of[n]

    def view(self, view: View) -> torch.Tensor:
        return apply_dims(self.of[view.node], view.dims)

    def term(self, item: Any) -> Any:
        """The value of a view, term, number or None."""
        if isinstance(item, View):
            return self.view(item)
        if not isinstance(item, Term):
            return item
        args = [self.term(a) for a in item.args]
        return _MEANING[item.op](*args, **item.attrs)


def _number(x: Any) -> torch.Tensor:
    return x if isinstance(x, torch.Tensor) else torch.tensor(x, dtype=torch.float64)


def _pad(x: torch.Tensor, pads: dict[int, tuple[int, int]], value: float) -> torch.Tensor:
    for dim, (before, after) in pads.items():
        assert dim < 0
        flat = [0, 0] * (-dim - 1) + [before, after]
        x = F.pad(x, flat, value=value)
    return x


def _slice(x: torch.Tensor, dim: int, start: int, end: int | None) -> torch.Tensor:
    return torch.ops.aten.slice.Tensor(x, dim, start, 2**62 if end is None else end)


def _projection(
    x: torch.Tensor, w: torch.Tensor, bias: Any, kept: Any, summed: Any, order: Any, own: int
) -> Any:
    rows = x.permute(*kept, *summed).flatten(len(kept))
    out = F.linear(rows, w.flatten(own).flatten(0, own - 1), bias)
    return out.unflatten(-1, w.shape[:own]).permute(order)


_MEANING: dict[str, Any] = {
    "matmul": torch.matmul,
    "linear": F.linear,
    "projection": _projection,
    "tanh": torch.tanh,
    "cat": lambda a, b, dim: torch.cat([a, b], dim),
    "sdpa": lambda q, k, v, mask, dropout, **flags: F.scaled_dot_product_attention(q, k, v, mask, **flags),
    "softmax": lambda x, dim: x.softmax(dim),
    "weighted_mean": lambda x, v: x.softmax(-1) @ v,
    "add": lambda a, b: _number(a) + b,
    "sub": lambda a, b: _number(a) - b,
    "mul": lambda a, b: _number(a) * b,
    "div": lambda a, b: _number(a) / b,
    "relu": torch.relu,
    "at_least": torch.clamp_min,
    "activation": lambda x, activation: ACTIVATIONS[activation](x),
    "half": lambda x, which: x.chunk(2, -1)[which],
    "exp": torch.exp,
    "cast": lambda x: x,
    "sum": lambda x, dim: x.sum(dim, keepdim=True),
    "logsumexp": lambda x, dim: x.logsumexp(dim, keepdim=True),
    "sigmoid": torch.sigmoid,
    "pad": _pad,
    "slice": _slice,
    "masked_fill": lambda x, mask, value: x.masked_fill(mask, value),
    "where": lambda c, a, b: torch.where(c, _number(a), _number(b)),
    "regroup": lambda x, to: x.reshape(tuple(to)),
    "reshape": lambda x, to: x.reshape(tuple(to)),
    "split": lambda x, split_sizes: x.reshape([s for group in split_sizes for s in group]),
    "merge": lambda x, merge_sizes: x.reshape([math.prod(group) for group in merge_sizes]),
}
