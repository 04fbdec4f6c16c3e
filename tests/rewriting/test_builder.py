"""The builder: what rules write appears in the graph, with values, and with symbolic sizes."""

from __future__ import annotations

import operator

import pytest
import torch

from fxrewrite.capture import fake_mode_of
from fxrewrite.matching.value import View, plain
from fxrewrite.rewriting.builder import Builder, UnbuildableError
from tests.support.graphs import node, returned, text, trace

X = torch.randn(2, 3, 4)


def builder(gm):
    return Builder(gm.graph, returned(gm), fake_mode_of(gm))


def finish(gm, result):
    gm.graph.output_node().args = (result,)
    gm.graph.eliminate_dead_code()
    gm.graph.lint()
    gm.recompile()
    return gm


def test_calls():
    gm = trace(lambda x: x + 1, X)
    op = builder(gm)
    result = op.aten.mul.Tensor(op.aten.relu(node(gm, "x_1")), 2)
    assert result.meta["val"].shape == (2, 3, 4)
    assert [n.name for n in op.inserted] == [n.name for n in gm.graph.nodes][1:3]
    assert torch.equal(finish(gm, result)(X), X.relu() * 2)


def test_keywords_and_views_as_operands():
    gm = trace(lambda x: x + 1, X)
    op = builder(gm)
    x = plain(node(gm, "x_1"))
    result = op.aten.sub.Tensor(x.mT, other=x.mT, alpha=2)
    assert torch.equal(finish(gm, result)(X), -X.mT)


@pytest.mark.parametrize(
    ("shape", "dims", "calls"),
    [
        ((2, 3, 4), (0, 1, 2), 0),
        ((2, 3, 4), (2, 0, 1), 1),
        ((2, 3, 4), (None, 0, 1, 2), 1),
        ((2, 3, 4), (2, None, 0, 1, None), 3),
        ((2, 1, 4), (0, 2), 2),
        ((1, 1, 4), (2, None), 2),
        ((1, 3, 4), (1, 2), 1),
        ((1,), (), 1),
        ((), (None, None), 2),
    ],
)
def test_views(shape, dims, calls):
    from fxrewrite.matching.value import apply_dims

    x = torch.randn(shape)
    gm = trace(lambda x: x + 1, x)
    op = builder(gm)
    result = op.tensor(View(node(gm, "x_1"), dims))
    assert len(op.inserted) == calls
    assert tuple(result.meta["val"].shape) == tuple(apply_dims(x, dims).shape)
    ours = finish(gm, result)(x)
    assert torch.equal(ours, apply_dims(x, dims))
    assert ours.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_reshaped():
    gm = trace(lambda x: x + 1, X)
    op = builder(gm)
    x = plain(node(gm, "x_1"))
    assert op.reshaped(x, (2, 3, 4)) is node(gm, "x_1")
    result = op.reshaped(x.mT, (8, 3))
    assert torch.equal(finish(gm, result)(X), X.mT.reshape(8, 3))


def test_symbolic_sizes_of_a_dim():
    gm = trace(lambda x: x + 1, X, dynamic=True)
    op = builder(gm)
    x = node(gm, "x_1")
    a, b, c = x.meta["val"].shape
    result = op.reshaped(plain(x), (1, a, b, c))
    assert any(n.target is torch.ops.aten.sym_size.int for n in op.inserted)
    other = torch.randn(5, 6, 7)
    assert torch.equal(finish(gm, result)(other), other[None])


def test_symbolic_sizes_that_the_graph_has_computed():
    gm = trace(lambda x: x.view(x.shape[0] * x.shape[1], x.shape[2]) + 1, X, dynamic=True)
    op = builder(gm)
    view = returned(gm).args[0]
    result = op.reshaped(plain(node(gm, "x_1")), tuple(view.meta["val"].shape))
    before = text(gm).count("sym_size")
    assert torch.equal(finish(gm, result)(X), X.view(6, 4))
    assert text(gm).count("sym_size") <= before


def test_an_equal_symbolic_shape_needs_no_call():
    gm = trace(lambda x: x + 1, X, dynamic=True)
    op = builder(gm)
    x = node(gm, "x_1")
    assert op.reshaped(plain(x), tuple(x.meta["val"].shape)) is x
    assert op.inserted == []


def test_a_size_that_no_value_has():
    gm = trace(lambda x: x + 1, X, dynamic=True)
    with pytest.raises(UnbuildableError, match="no value in the graph has the size"):
        builder(gm).size(node(gm, "x_1").meta["val"].shape[0] + 7)


def test_a_product_of_sizes_is_computed():
    gm = trace(lambda x: x + 1, X, dynamic=True)
    rows, columns = node(gm, "x_1").meta["val"].shape[:2]
    op = builder(gm)
    assert op.size(rows * columns * 3).meta["val"] == rows * columns * 3
    assert all(n.target in (operator.mul, torch.ops.aten.sym_size.int) for n in op.inserted)
