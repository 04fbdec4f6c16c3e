"""Aliasing: who shares memory with whom, against what the memory itself says."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fxrewrite.matching import Aliasing
from fxrewrite.matching.aliasing import shares_memory
from tests.matching.terms64 import Values
from tests.support.graphs import node, returned, trace

X, Y = torch.randn(4, 4), torch.randn(4, 4)

SHARED = {
    "transpose": lambda x: x.t(),
    "chain": lambda x: x.t().unsqueeze(0).permute(2, 0, 1)[1:],
    "view": lambda x: x.view(2, 8),
    "reshape": lambda x: x.reshape(16),
    "expand": lambda x: x.unsqueeze(0).expand(3, 4, 4),
    "contiguous": lambda x: x.contiguous(),
    "chunk": lambda x: x.chunk(2)[1],
    "split": lambda x: x.split([1, 3])[0],
    "unbind": lambda x: x.unbind(0)[2],
    "select": lambda x: x[1],
    "diagonal": lambda x: x.diagonal(),
    "cast to its own dtype": lambda x: torch.ops.aten.to.dtype(x, torch.float32),
    "type_as": lambda x: x.type_as(x),
    "dropout switched off": lambda x: F.dropout(x, 0.5, training=False),
    "einsum that permutes": lambda x: torch.einsum("ij->ji", x),
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x, torch.ones(2, 1, 1))[0],
    "in place": lambda x: x.mul_(2),
    "out": lambda x: torch.add(x, 1, out=x),
    "detach": lambda x: x.detach(),
    "real part": lambda x: torch.view_as_real(torch.view_as_complex(x.view(4, 2, 2))),
}
OWN = {
    "sum": lambda x: x + 1,
    "clone": lambda x: x.clone(),
    "product": lambda x: x @ x,
    "softmax": lambda x: x.softmax(-1),
    "pad": lambda x: F.pad(x, (0, 1)),
    "cat": lambda x: torch.cat([x, x]),
    "empty_like": lambda x: torch.empty_like(x),
    "index": lambda x: x[torch.tensor([0, 1])],
    "split of a copy": lambda x: (x + 1).split(2)[0],
}


@pytest.mark.parametrize("function", SHARED.values(), ids=list(SHARED))
def test_shared(function):
    gm = trace(function, X)
    aliasing, end = Aliasing(gm.graph), returned(gm)
    x = node(gm, "x_1")
    assert aliasing.storage(end) is x
    assert not aliasing.is_fresh(end)
    values = Values(gm, X.clone())
    assert values.of[end].untyped_storage().data_ptr() == values.of[x].untyped_storage().data_ptr()


@pytest.mark.parametrize("function", OWN.values(), ids=list(OWN))
def test_own(function):
    gm = trace(function, X)
    aliasing, end = Aliasing(gm.graph), returned(gm)
    assert aliasing.storage(end) is not node(gm, "x_1")
    assert not shares_memory(end, node(gm, "x_1"))
    assert not aliasing.is_mutated(end)


def test_inputs_are_not_fresh():
    gm = trace(lambda x: x + 1, X)
    aliasing = Aliasing(gm.graph)
    assert not aliasing.is_fresh(node(gm, "x_1"))
    assert aliasing.is_fresh(returned(gm))


WRITES = {
    "itself": lambda y: y.mul_(2),
    "a view": lambda y: y.t().mul_(2),
    "a view of a view": lambda y: y.t()[1:].zero_(),
    "a part": lambda y: y[0].copy_(torch.ones(4)),
    "a chunk": lambda y: y.chunk(2)[0].fill_(1),
    "as output": lambda y: torch.add(y, 1, out=y),
    "in a list": lambda y: torch._foreach_mul_([y], 2.0),
    "by index": lambda y: y.index_put_((torch.tensor([0]),), torch.ones(4)),
    "through switched-off dropout": lambda y: F.dropout(y, 0.1, training=False).mul_(2),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=list(WRITES))
def test_writes(write):
    def function(x):
        y = x + 1
        write(y)
        return y

    gm = trace(function, X)
    aliasing = Aliasing(gm.graph)
    assert aliasing.is_mutated(node(gm, "add"))
    assert not aliasing.is_mutated(node(gm, "x_1"))


def test_written_between():
    def function(x, y):
        a = x + 1
        x.mul_(2)
        b = a + x
        y.add_(1)
        return b

    gm = trace(function, X, Y)
    aliasing = Aliasing(gm.graph)
    position = aliasing.position
    x, y, a, b = (node(gm, n) for n in ("x_1", "y_1", "add", "add_1"))
    first, last = position[a], position[b]
    assert aliasing.written_between(x, first, last) is x
    assert aliasing.written_between(y, first, last) is x  # two inputs may be views of one tensor
    assert aliasing.written_between(a, first, last) is None
    assert aliasing.written_between(x, last, last + 1) is None
    assert aliasing.written_between(x, last, len(position)) is y
