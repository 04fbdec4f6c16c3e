"""Values computed twice: the same only where nothing random and no write comes between."""

from __future__ import annotations

import pytest
import torch

from fxrewrite.matching import Aliasing
from fxrewrite.matching.same import same_value
from fxrewrite.matching.value import plain
from fxrewrite.rewriting.functional import simplify
from tests.support.graphs import trace

X, Y = torch.randn(4, 4), torch.randn(4, 4)


def written_between(x, y):
    s = x + 1
    a = s > 0
    s.neg_()
    return a, s > 0


SAME = {
    "one value": lambda x, y: (x, x),
    "one operator": lambda x, y: (x > 0, x > 0),
    "several": lambda x, y: (
        torch.cat([x.t(), y]).eq(0).logical_not(),
        torch.cat([x.t(), y]).eq(0).logical_not(),
    ),
    "a tensor of a number": lambda x, y: (x == torch.tensor(2.0), x == torch.tensor(2.0)),
    "positions": lambda x, y: (torch.arange(4) < 2, torch.arange(4) < 2),
}
OTHER = {
    "another input": lambda x, y: (x > 0, y > 0),
    "another number": lambda x, y: (x > 0, x > 1),
    "a number of another type": lambda x, y: (x * 1, x * True),
    "a tensor of another number": lambda x, y: (x == torch.tensor(2.0), x == torch.tensor(3.0)),
    "a tensor of another type": lambda x, y: (x * torch.tensor(2.0), x * torch.tensor(2.0).double()),
    "another operator": lambda x, y: (x > 0, x >= 0),
    "more operands": lambda x, y: (torch.cat([x, y]), torch.cat([x, y, y])),
    "another keyword": lambda x, y: (x.sum(0, dtype=torch.float64), x.sum(0)),
    "random": lambda x, y: (torch.rand_like(x), torch.rand_like(x)),
    "written between": written_between,
    "an input written between": lambda x, y: (x > 0, x.neg_() > 0),
}


def seen(function) -> bool:
    gm = trace(function, X, Y)
    simplify(gm)  # `torch.tensor(2.0)` is captured with a write
    a, b = gm.graph.output_node().args[0]
    return same_value(plain(a), plain(b), Aliasing(gm.graph))


@pytest.mark.parametrize("function", SAME.values(), ids=list(SAME))
def test_same(function):
    assert seen(function)


@pytest.mark.parametrize("function", OTHER.values(), ids=list(OTHER))
def test_other(function):
    assert not seen(function)


def test_in_another_order_of_dims():
    gm = trace(lambda x, y: (x > 0, x > 0), X, Y)
    a, b = (plain(n) for n in gm.graph.output_node().args[0])
    assert not same_value(a, b.mT, Aliasing(gm.graph))
    assert not same_value(a, 1.0, Aliasing(gm.graph))
