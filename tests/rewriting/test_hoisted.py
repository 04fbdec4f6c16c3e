"""Casts moved up to the division that they are of: bit-equal to eager, in the same memory order."""

from __future__ import annotations

import pytest
import torch

from fxrewrite.rewriting.functional import simplify
from tests.support.graphs import text, trace

BF16 = torch.bfloat16
X, Y = torch.randn(2, 3, 4, 5), torch.rand(2, 3, 1, 5) + 0.5


def moved(gm):
    """Is the cast the division's next user?"""
    (cast,) = (n for n in gm.graph.nodes if "to.dtype" in str(n.target))
    return "div" in str(cast.args[0].target) or "mul" in str(cast.args[0].target)


def flat(x, y):
    return (x / y).flatten(1, 2).transpose(1, 2).to(BF16)


def copied(x, y):
    return (x / y).transpose(1, 3).reshape(2, 5, 12).to(BF16)


def by_reciprocal(x, y):
    return (x * (1 / y)).permute(0, 3, 1, 2).to(BF16)


@pytest.mark.parametrize("function", [flat, copied, by_reciprocal])
def test_moved(function):
    gm = trace(function, X, Y)
    simplify(gm)
    assert moved(gm)
    want, out = function(X, Y), gm(X, Y)
    assert torch.equal(out, want)
    assert out.stride() == want.stride()
    last = gm.graph.output_node().args[0]
    assert (last.meta["val"].dtype, last.meta["val"].stride()) == (want.dtype, want.stride())


def split(x, y):
    n = x.shape[3]
    return (x / y).transpose(-1, -2).reshape(2, 3, n, 2, 2).to(BF16)


def test_moved_among_symbolic_sizes():
    gm = trace(split, X, Y, dynamic=True)
    simplify(gm)
    assert moved(gm)
    x, y = torch.randn(2, 3, 4, 9), torch.rand(2, 3, 1, 9) + 0.5
    out, want = gm(x, y), split(x, y)
    assert torch.equal(out, want)
    assert out.stride() == want.stride()


def widens(x, y):
    return (x / y).flatten(1, 2).double()


def of_a_sum(x, y):
    return (x + y).flatten(1, 2).to(BF16)


def used_twice(x, y):
    wide = (x / y).flatten(1, 2)
    return wide.to(BF16), wide


def written(x, y):
    out = (x / y).flatten(1, 2).to(BF16)
    out.sinh_()
    return out


def to_integers(x, y):
    return (x / y).flatten(1, 2).to(torch.int32)


@pytest.mark.parametrize("function", [widens, of_a_sum, used_twice, written, to_integers])
def test_left_where_it_is(function):
    gm = trace(function, X, Y)
    before = text(gm)
    simplify(gm)
    assert text(gm) == before
    want, out = function(X, Y), gm(X, Y)
    for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (out, want)), strict=True):
        assert torch.equal(a, b)
