"""What hides sites is removed, and regions of autocast are told."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fxrewrite import capture
from fxrewrite.errors import CaptureError
from tests.support.graphs import text, trace

from .net import X

aten = torch.ops.aten


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
