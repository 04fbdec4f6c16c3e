"""Readings of activations: as one call, and as the formula written out.

A formula is recognised by what it computes, so every way to write it is: it is evaluated in float64.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import fx

from ..capture import computing
from .terms import CallNode, Dims, Term, argument, aten, reads
from .transparent import same_sizes
from .value import View, is_tensor

# What formulas are made of, all analytic functions: two of them that agree on an interval are one.
_ANALYTIC = (
    aten.mul.Tensor,
    aten.mul.Scalar,
    aten.div.Tensor,
    aten.div.Scalar,
    aten.add.Tensor,
    aten.add.Scalar,
    aten.rsub.Scalar,
    aten.neg.default,
    aten.pow.Tensor_Scalar,
    aten.square.default,
)
# Without one of these it is no activation.
_TRANSCENDENTAL = (aten.sigmoid.default, aten.tanh.default, aten.erf.default, aten.exp.default)
_MOST_NODES = 12
# Constants are written with eight digits or more; the nearest other formula is much farther away.
_TOLERANCE = 2e-8


def _activation(x: fx.Node, dims: Dims, name: str, folded: tuple[fx.Node, ...] = ()) -> list[Term]:
    return [Term("activation", (View(x, dims),), {"activation": name}, folded)]


@reads("activation", aten.gelu.default)
def _(node: CallNode, dims: Dims) -> list[Term]:
    approximate = argument(node, 1, "approximate", "none")
    return _activation(node.args[0], dims, "gelu" if approximate == "none" else "gelu_tanh")


@reads("activation", aten.silu.default)
def _(node: CallNode, dims: Dims) -> list[Term]:
    return _activation(node.args[0], dims, "silu")


@reads("activation", aten.relu.default)
def _(node: CallNode, dims: Dims) -> list[Term]:
    return _activation(node.args[0], dims, "relu")


@reads("activation", aten.mul.Tensor, aten.div.Tensor)
def _(node: CallNode, dims: Dims) -> list[Term]:
    """x·sigmoid(x), x·(1 + tanh(...))/2, x·(1 + erf(x/√2))/2: whatever has these values."""
    found = _formula(node)
    if found is None:
        return []
    x, inner = found
    with computing():
        points = torch.linspace(-6, 6, 49, dtype=torch.float64)
        values = _evaluated(node, x, points)
        for name, expected in _known().items():
            if torch.allclose(values, expected, rtol=0, atol=_TOLERANCE):
                return _activation(x, dims, name, tuple(inner))
    return []


@functools.cache
def _known() -> dict[str, torch.Tensor]:
    with computing():
        x = torch.linspace(-6, 6, 49, dtype=torch.float64)
        cubic = x + 0.044715 * x**3
        return {
            "silu": x * x.sigmoid(),
            "gelu": 0.5 * x * (1 + (x / math.sqrt(2)).erf()),
            "gelu_tanh": 0.5 * x * (1 + (math.sqrt(2 / math.pi) * cubic).tanh()),
            "quick_gelu": x * (1.702 * x).sigmoid(),
        }


def _formula(root: fx.Node) -> tuple[fx.Node, list[fx.Node]] | None:
    """The one value that ``root`` is an analytic function of, and the nodes between the two."""
    sources: dict[fx.Node, None] = {}
    inner: dict[fx.Node, None] = {}
    pending = [root]
    while pending:
        node: CallNode = pending.pop()
        if node.target in (*_ANALYTIC, *_TRANSCENDENTAL):
            if not all(is_tensor(n) and same_sizes(n, root) for n in node.all_input_nodes):
                return None
            inner[node] = None
            pending += [n for n in node.all_input_nodes if n not in inner]
        else:
            sources[node] = None
        if len(sources) > 1 or len(inner) > _MOST_NODES:
            return None
    if len(sources) != 1 or all(n.target not in _TRANSCENDENTAL for n in inner):
        return None
    del inner[root]
    return next(iter(sources)), list(inner)


def _evaluated(node: CallNode, x: fx.Node, values: torch.Tensor) -> torch.Tensor:
    """``node`` as a function of ``x``, at these values of x."""
    if node is x:
        return values
    args = [_evaluated(a, x, values) if isinstance(a, fx.Node) else a for a in node.args]
    result: torch.Tensor = node.target(*args, **node.kwargs)
    return result
