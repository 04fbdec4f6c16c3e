"""Capture: Dynamo's graph and the exported one become functional pre-dispatch ATen; fakes compute nothing."""

from __future__ import annotations

import copy
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from fxrewrite import capture
from fxrewrite.errors import CaptureError
from tests.support.graphs import dynamo_graphs, text, trace

aten = torch.ops.aten


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.b.weight = self.a.weight
        self.plain = torch.ones(8)
        self.listed = {"deep": [torch.full((8,), 2.0)]}

    def forward(self, x, flag=True):
        y = F.scaled_dot_product_attention(self.a(x), self.b(x), x)
        return (y * self.plain + self.listed["deep"][0]).softmax(-1) if flag else y


X = torch.randn(2, 3, 8)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


# ---------------------------------------------------------------------------------------- from_dynamo


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


# ------------------------------------------------------------------------------------------ autocast


def without_autocast(x):
    with torch.autocast("cpu", enabled=False):
        y = x.float() @ x.float().mT
    return y.softmax(-1)


def test_regions_that_switch_autocast_off_are_inlined():
    class Region(nn.Module):
        def forward(self, x):
            return without_autocast(x)

    program = torch.export.export(Region(), (X,))
    assert "wrap_with_autocast" in text(program.graph_module)
    graph = capture.canonical_graph(program.graph_module)
    assert "wrap_with_autocast" not in text(graph)
    assert "matmul.default" in text(graph)
    assert torch.equal(graph(X)[0], without_autocast(X))


def test_a_region_with_several_results_and_a_constant():
    class Region(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("c", torch.arange(8.0))

        def forward(self, x):
            with torch.autocast("cpu", enabled=False):
                a, b = x * self.c, x + 1
            return a @ b.mT

    net = Region()
    graph = capture.canonical_graph(torch.export.export(net, (X,)).graph_module)
    assert "wrap_with_autocast" not in text(graph)
    assert torch.equal(graph(net.c, X)[0], net(X))


def test_regions_that_switch_it_on_stay():
    class Region(nn.Module):
        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return x @ x.mT

    graph = torch.export.export(Region(), (X,)).graph_module
    assert "wrap_with_autocast" in text(capture.canonical_graph(graph))


def test_in_autocast():
    def function(x):
        a = x + 1
        with torch.autocast("cpu", dtype=torch.bfloat16):
            b = a @ a.mT
            with torch.autocast("cpu", dtype=torch.float16):
                c = b + 1
            d = c + 2
        return d + 3, x * 2

    gm = trace(function, X)
    inside = {n.name for n in capture.in_autocast(gm) if isinstance(n.meta.get("val"), torch.Tensor)}
    every = {n.name for n in gm.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)}
    outside = every - inside
    assert "matmul" in inside
    assert {"x_1", "add", "mul"} <= outside
    assert {"add_1", "add_2"} <= inside
    assert "add_3" in outside  # its operand's dtype is the one captured


def test_autocast_by_device():
    region = torch.fx.Graph()  # as Dynamo and tracers write it down
    x = region.placeholder("x")
    enter, leave = torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast
    cpu = region.call_function(enter, ("cpu", torch.bfloat16, True, None))
    cuda = region.call_function(enter, ("cuda", torch.float16, False, None))
    product = region.call_function(torch.ops.aten.mul.Tensor, (x, x))
    region.call_function(leave, (cuda,))
    region.call_function(leave, (cpu,))
    other = region.call_function(enter, ("cuda", torch.float16, True, None))
    unchanged = region.call_function(torch.ops.aten.mul.Tensor, (x, x))
    region.call_function(leave, (other,))
    region.output((product, unchanged))
    x.meta["val"] = X
    assert capture.in_autocast(torch.fx.GraphModule({}, region)) == {product}


def test_dtypes_in_an_autocast_region_are_those_of_the_run():
    """Else ``y.float()`` would be no cast, and ``y``, if it is returned, its result."""

    class Region(nn.Module):
        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = x @ x.mT
                with torch.autocast("cpu", enabled=False):
                    z = y.float() @ y.float()
            return y, z, y.type_as(x)

    graphs = []

    def backend(gm, example_inputs):
        graphs.append(capture.from_dynamo(gm))
        return graphs[0].forward

    with torch.no_grad():
        got, want = torch.compile(Region(), backend=backend)(X), Region()(X)
    for a, b, node in zip(got, want, graphs[0].graph.output_node().args[0], strict=True):
        assert a.dtype == b.dtype == node.meta["val"].dtype
        assert torch.equal(a, b)
    assert not torch.is_autocast_enabled("cpu")


def test_a_trace_that_fails_leaves_its_autocast_region():
    class Region(nn.Module):
        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return torch.sin(x)

    def backend(gm, example_inputs):
        def fails(*args):
            raise RuntimeError("no trace")

        next(n for n in gm.graph.nodes if n.target is torch.sin).target = fails
        with pytest.raises(CaptureError, match="no trace"):
            capture.from_dynamo(gm)
        assert not torch.is_autocast_enabled("cpu")
        return lambda *inputs: inputs

    torch.compile(Region(), backend=backend)(X)


def test_a_region_that_switches_autocast_off_changes_nothing():
    gm = trace(without_autocast, X)
    assert "_enter_autocast" in text(gm)
    assert capture.in_autocast(gm) == set()


def test_switched_off_inside_of_switched_on():
    def function(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x.mT
            with torch.autocast("cpu", enabled=False):
                z, w = y * 2, x * 2
        return z, w

    gm = trace(function, X)
    inside = {n.name for n in capture.in_autocast(gm)}
    assert "matmul" in inside
    assert {"mul", "mul_1"}.isdisjoint(inside)


def test_checks_of_metadata_are_removed():
    class Casting(nn.Module):
        def forward(self, x):
            return x.to(torch.bfloat16) @ x.to(torch.bfloat16).mT

    functional = capture.from_exported(torch.export.export(Casting(), (X,))).graph_module
    graph = capture.canonical_graph(functional)
    assert "_assert_tensor_metadata" not in text(graph)


# ------------------------------------------------------------------------------------------ fake calls


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

    assert capture.run_fake(capture.fake_call(net, (x,), {}), keep) is None
    assert len(graphs) == 1
    assert net.count == 0
    assert torch.equal(x, X)


def test_what_stops_a_fake_run_is_said():
    class Broken(nn.Module):
        def forward(self, x):
            return x @ torch.ones(3, 3)

    said = capture.run_fake(capture.fake_call(Broken(), (X,), {}), lambda gm, inputs: gm.forward)
    assert said is not None
    assert "\n" not in said


def test_reachable_tensors():
    net = Net()
    found = {id(t) for t in capture.reachable_tensors(net)}
    for tensor in (net.a.weight, net.a.bias, net.plain, net.listed["deep"][0]):
        assert id(tensor) in found


def test_copy_sharing_tensors():
    net = Net()
    twin = capture.copy_sharing_tensors(net)
    assert twin.a is not net.a
    assert twin.a.weight is net.a.weight is twin.b.weight
    assert twin.listed is not net.listed
    assert twin.listed["deep"][0] is net.listed["deep"][0]


# ------------------------------------------------------------------------------------------- own code


def test_with_own_code():
    net = Net()
    one, other = capture.with_own_code(net.forward), capture.with_own_code(net.forward)
    assert isinstance(one, types.MethodType)
    assert one.__self__ is net
    codes = {id(one.__func__.__code__), id(other.__func__.__code__), id(Net.forward.__code__)}
    assert len(codes) == 3
    assert torch.equal(one(X), net(X))
    assert torch.equal(one(X, flag=False), net(X, False))


def test_with_own_code_keeps_defaults_and_closures():
    factor = 3

    def function(x, *, plus=2):
        return x * factor + plus

    clone = capture.with_own_code(function)
    assert clone(1) == 5
    assert clone(1, plus=0) == 3
    assert clone.__code__ is not function.__code__


def test_with_own_code_starts_outside_torch():
    sequential = nn.Sequential(nn.Linear(8, 8))
    started = capture.with_own_code(sequential.forward)
    assert not started.__code__.co_filename.startswith(torch.__path__[0])
    assert torch.equal(started(X), sequential(X))
    assert copy.deepcopy(sequential)(X).shape == X.shape


def test_first_line():
    assert capture.first_line(ValueError("\n\n  a \nb")) == "a"
    assert capture.first_line(ValueError("")) == "ValueError"
