"""Models run on fake tensors: nothing is computed and nothing changed."""

from __future__ import annotations

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from fxrewrite import capture

from .net import Net, X

aten = torch.ops.aten


def test_fake_call_copies_with_fakes():
    net = Net()
    call = capture.fake_call(net, (X,), {"flag": True})
    assert call.model is not net
    assert type(call.model) is Net
    fakes = [call.model.a.weight, call.model.plain, call.model.listed["deep"][0], call.args[0]]
    assert all(isinstance(t, FakeTensor) for t in fakes)
    assert isinstance(call.model.a.weight, nn.Parameter)
    assert call.model.b.weight is call.model.a.weight
    assert call.kwargs == {"flag": True}
    assert not isinstance(net.a.weight, FakeTensor)
    assert not isinstance(X, FakeTensor)


def test_fake_call_keeps_marks_and_layouts():
    x = torch.randn(4, 6).t()
    torch._dynamo.mark_dynamic(x, 0)
    call = capture.fake_call(Net(), (x,), {})
    assert call.args[0].stride() == x.stride()
    assert call.args[0]._dynamo_dynamic_indices == {0}


def test_meta_tensors_become_those_of_the_cpu():
    with torch.device("meta"):
        net, x = Net(), torch.empty(2, 3, 8)
    call = capture.fake_call(net, (x,), {})
    assert call.model.a.weight.device.type == "cpu"
    assert call.args[0].device.type == "cpu"
    assert net.a.weight.device.type == "meta"


def test_a_fake_run_computes_and_changes_nothing():
    class Writing(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count += 1
            x.add_(1)
            return x @ x.mT

    net, x = Writing(), X.clone()
    graphs = []

    def keep(gm, inputs):
        graphs.append(gm)
        return gm.forward

    assert capture.run_fake(capture.fake_call(net, (x,), {}), keep) == (None, [])
    assert len(graphs) == 1
    assert net.count == 0
    assert torch.equal(x, X)


def test_what_stops_a_fake_run_is_said():
    class Broken(nn.Module):
        def forward(self, x):
            return x @ torch.ones(3, 3)

    said, _ = capture.run_fake(capture.fake_call(Broken(), (X,), {}), lambda gm, inputs: gm.forward)
    assert said is not None
    assert "\n" not in said


def test_an_error_is_told_in_one_line():
    class Raises(torch.nn.Module):
        def forward(self, x):
            raise RuntimeError("the first line\nthe second")

    problem, _ = capture.run_fake(capture.fake_call(Raises(), (torch.ones(2),), {}), lambda gm, _: gm.forward)
    assert problem is not None
    assert problem.endswith("the first line")
