"""Graphs of Dynamo become functional pre-dispatch ATen."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

from fxrewrite import capture
from fxrewrite.errors import CaptureError
from tests.support.graphs import dynamo_graphs

from .net import Net, X

aten = torch.ops.aten


def test_from_dynamo_keeps_composites_whole():
    (gm,) = dynamo_graphs(Net(), X)
    graph = capture.from_dynamo(gm)
    targets = [n.target for n in graph.graph.nodes if n.op == "call_function"]
    assert targets.count(aten.linear.default) == 2
    assert aten.scaled_dot_product_attention.default in targets
    assert aten.softmax.int in targets


def test_from_dynamo_keeps_placeholders_traces_and_values():
    (gm,) = dynamo_graphs(Net(), X)
    graph = capture.from_dynamo(gm)
    before, after = (g.graph.find_nodes(op="placeholder") for g in (gm, graph))
    assert len(before) == len(after)
    for one, other in zip(before, after, strict=True):
        assert one.meta["example_value"].shape == other.meta["val"].shape
        assert other.meta["requires_grad"] == one.meta["example_value"].requires_grad
    assert sum(n.meta["requires_grad"] for n in after) == 2  # the tied weight is one input
    for node in graph.graph.find_nodes(op="call_function", target=aten.linear.default):
        assert "F.scaled_dot_product_attention(self.a(x), self.b(x), x)" in node.meta["stack_trace"]
        assert node.meta["nn_module_stack"]
        assert isinstance(node.meta["val"], FakeTensor)


def test_from_dynamo_leaves_the_graph_alone():
    (gm,) = dynamo_graphs(Net(), X)
    before = gm.code
    capture.from_dynamo(gm)
    assert gm.code == before


def test_the_captured_graph_computes_the_same():
    net = Net()
    (gm,) = dynamo_graphs(net, X)
    graph = capture.from_dynamo(gm)
    assert torch.equal(graph(*gm.meta["inputs"])[0], net(X))


def test_symbolic_sizes_survive():
    (gm,) = dynamo_graphs(lambda x: x.relu() @ x.mT, X, dynamic=True)
    graph = capture.from_dynamo(gm)
    values = [n.meta["val"] for n in graph.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    assert any(isinstance(size, torch.SymInt) for value in values for size in value.shape)


def test_a_failure_is_a_capture_error_of_one_line():
    (gm,) = dynamo_graphs(lambda x: x + 1, X)

    def refuse(*args):
        raise ValueError("\n  first line\nsecond")

    (call,) = gm.graph.find_nodes(op="call_function", target=__import__("operator").add)
    call.target = refuse
    with pytest.raises(CaptureError, match=r"^ValueError: first line$"):
        capture.from_dynamo(gm)
