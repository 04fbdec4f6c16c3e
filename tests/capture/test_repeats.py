"""Repeated blocks are traced once, and the graph is the one that tracing each of them gives.

But for the order of its placeholders: their names (arg0_1) are left out of what is compared.
"""

from __future__ import annotations

import json
import re

import pytest
import torch
from torch import nn

import fxrewrite
from fxrewrite import capture
from fxrewrite.capture import bodies, repeats
from fxrewrite.rewriting.candidates import module_path, where
from tests.models.params import each_model


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x, scale=1.0):
        return x + self.inner(x) * scale


class Stack(nn.Module):
    def __init__(self, block=Block, scales=(1.0, 1.0, 1.0, 1.0)):
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in scales)
        self.scales = list(scales)

    def forward(self, x):
        for block, scale in zip(self.blocks, self.scales, strict=True):
            x = block(x, scale)
        return x


class Views(Block):
    """Its results are views of one tensor, and one is its argument."""

    def forward(self, x, scale):
        y = super().forward(x[0] if isinstance(x, tuple) else x)
        return y[:1], y[1:], x


class ViewsStack(Stack):
    def forward(self, x):
        for block in self.blocks:
            first, second, _ = block(x, 1.0)
            x = torch.cat([second, first])
        return x


class Counting(Block):
    """Its trace is not reused: it changes what it reads."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def forward(self, x, scale):
        self.count += 1
        return super().forward(x, self.count)


class Printing(Block):
    def forward(self, x, scale):
        torch._dynamo.graph_break()
        return super().forward(x)


X = torch.randn(2, 8)


def dry(model, monkeypatch, at_least):
    """The graphs of a dry run, as text, and what was said; blocks are repeated from ``at_least`` on."""
    monkeypatch.setattr(repeats, "_AT_LEAST", at_least)
    torch._dynamo.reset()
    graphs, regions = [], 0

    def backend(gm, inputs):
        nonlocal regions
        regions += len(gm.graph.find_nodes(op="call_function", target=repeats.REGION))
        told = []
        for node in capture.from_dynamo(gm).graph.nodes:
            if node.op != "call_function":
                continue
            args = re.sub(r"\barg\d+_1\b", "arg", str(node.args))
            told.append((str(node.target), args, module_path(node), where(node)))
        graphs.append(told)
        return gm.forward

    with torch.no_grad():
        said = capture.run_fake(capture.fake_call(model, (X,), {}), backend)
    return graphs, said, regions


def check(model, monkeypatch, regions):
    plain, said, none = dry(model, monkeypatch, 99)
    assert none == 0
    once, also_said, found = dry(model, monkeypatch, 3)
    assert found == regions
    assert once == plain
    assert also_said == said
    return once


def test_the_graph_is_that_of_each_block_traced(monkeypatch):
    (graph,) = check(Stack(), monkeypatch, regions=4)
    modules = [module for target, _, module, _ in graph if "linear" in target]
    assert modules == [f"blocks.{i}.inner.linear" for i in range(4)]
    assert all("test_repeats.py" in place for target, _, _, (place, _) in graph if "linear" in target)


def test_unlike_blocks_have_a_trace_of_their_own(monkeypatch):
    (graph,) = check(Stack(scales=(1.0, 2.0, 1.0, 2.0)), monkeypatch, regions=4)
    assert sum("2.0" in args for _, args, *_ in graph) == 2


def test_blocks_with_too_many_differences_are_traced_each(monkeypatch):
    check(Stack(scales=range(12)), monkeypatch, regions=0)


def test_weights_of_another_size(monkeypatch):
    class Wide(Block):
        made = 0

        def __init__(self):
            super().__init__()
            Wide.made += 1
            if Wide.made == 2:
                self.inner.linear = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8))

    check(Stack(Wide), monkeypatch, regions=3)


def test_results_that_are_views(monkeypatch):
    check(ViewsStack(Views), monkeypatch, regions=4)


def test_blocks_that_change_what_they_read(monkeypatch):
    (graph,) = check(Stack(Counting), monkeypatch, regions=4)
    assert [args for target, args, *_ in graph if target == "aten.mul.Tensor"] != []


def test_breaks_inside_are_told_once(monkeypatch):
    check(Stack(Printing), monkeypatch, regions=0)
    _, (problem, breaks), _ = dry(Stack(Printing), monkeypatch, 3)
    assert problem is None
    assert len(breaks) == len(set(breaks)) > 0
    assert all("1 times" in told for told in breaks)


def test_with_gradients_each_block_is_traced(monkeypatch):
    def backend(gm, inputs):
        assert not gm.graph.find_nodes(op="call_function", target=repeats.REGION)
        return gm.forward

    assert capture.run_fake(capture.fake_call(Stack(), (X,), {}), backend) == (None, [])


def test_classes_are_given_back():
    class Registering(Block):
        def __init_subclass__(cls, **kwargs):
            raise AssertionError("nobody asked for a subclass")

    class Replaced(Block):
        def __init__(self):
            super().__init__()
            self.forward = lambda x, scale: x

    for block, marked in ((Block, True), (Registering, True), (Replaced, False), (nn.Identity, False)):
        model = Stack(block)
        model.again = nn.ModuleList(model.blocks)
        with repeats.traced_once(model) as repeated:
            assert repeated is marked
            assert all((type(b) is not block) is marked and isinstance(b, block) for b in model.blocks)
        assert all(type(b) is block for b in model.blocks)


def test_of_unlike_blocks_those_inside_are_regions():
    class Scale(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(3))
            self.head = nn.Linear(8, width)

    scales = nn.ModuleList(map(Scale, (1, 2, 3)))
    with repeats.traced_once(nn.Sequential(scales)) as repeated:
        assert repeated
        assert all(type(scale) is Scale for scale in scales)
        assert all(type(block) is not Block for scale in scales for block in scale.blocks)


def test_relabelled():
    traced, called = {"1": ("m", "M"), "2": ("m.b.0", "B")}, {"1": ("m", "M"), "9": ("m.b.10", "B")}
    node = {**traced, "3": ("m.b.0.c", "C")}
    assert repeats.relabelled(node, traced, called) == {**called, "3": ("m.b.10.c", "C")}
    assert repeats.relabelled(node, traced, traced) == node
    elsewhere = {**traced, "3": ("m.b.01", "C")}
    assert repeats.relabelled(elsewhere, traced, called)["3"] == ("m.b.01", "C")
    assert repeats.relabelled(node, {}, called) == node


def test_classes_of_one_name(monkeypatch):
    def made(of):
        class Block(Inner):
            def forward(self, x, scale):
                return of(self.linear(x))

        Block.__init__ = lambda self: (Inner.__init__(self), setattr(self, "nested", Inner()))[0]
        return Block

    model = Stack(made(torch.relu))
    other = made(torch.tanh)
    model.blocks.extend(other() for _ in range(4))
    model.scales *= 2
    (graph,) = check(model, monkeypatch, regions=8)
    called = [target for target, *_ in graph]
    assert called.count("aten.relu.default") == called.count("aten.tanh.default") == 4


def test_regions_of_the_users_hide_no_site():
    """Of the same function, called in two modules; numbers and module paths are those of the calls."""

    @torch.compiler.nested_compile_region
    def product(linear, x):
        return linear(x).relu()

    class Calling(Block):
        def forward(self, x, scale):
            return x + product(self.inner.linear, x)

    model = Stack(Calling)
    want = model(X)
    with torch.no_grad():
        fast = fxrewrite.rewrite(model, (X,))
        got = fast(X)
    sites = [s for s in fast.report.sites if s.kind == "linear"]
    assert [s.module for s in sites] == [f"blocks.{i}.inner.linear" for i in range(4)]
    torch.testing.assert_close(got, want)


@pytest.mark.slow
@each_model
def test_reports_of_models_are_the_same(model, monkeypatch):
    reports = []
    for at_least in (99, 1):
        monkeypatch.setattr(repeats, "_AT_LEAST", at_least)
        torch._dynamo.reset()
        made, args, kwargs = model.make()
        with torch.no_grad():
            report = fxrewrite.analyze(made, args, kwargs).to_dict()
            text = json.dumps([report["sites"], report["notes"]])
            reports.append(re.sub(r"\barg\d+_1\b", "arg", text))
    assert reports[0] == reports[1]


class Chunks(Block):
    """Called with a tuple and by name; its result has two parts and a number."""

    def forward(self, x, pair=(0.0, 1.0), *, scale=1.0):
        first, second = super().forward(x * pair[1], scale).chunk(2)
        return first, second, 3


class ChunksStack(Stack):
    def forward(self, x):
        for block, scale in zip(self.blocks, self.scales, strict=True):
            first, second, number = block(x, pair=(x, x + 1), scale=scale)
            x = torch.cat([second, first]) * number
        return x


def test_arguments_by_name_and_in_tuples(monkeypatch):
    (graph,) = check(ChunksStack(Chunks), monkeypatch, regions=4)
    assert sum("linear" in target for target, *_ in graph) == 4


def test_arguments_come_back_in_their_form():
    for args, kwargs in (((1, (2, 3)), {}), ((1, (2, 3), ()), {"b": (4,), "a": None}), ((), {"a": 1})):
        form, leaves = repeats._leaves(args, kwargs)
        found_args, found_kwargs = repeats._arguments(form, tuple(leaves))
        assert tuple(found_args) == args
        assert list(found_kwargs.items()) == list(kwargs.items())


class InAutocast(Stack):
    def forward(self, x):
        x = super().forward(x)
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x)


def test_blocks_called_under_autocast_and_not(monkeypatch):
    (graph,) = check(InAutocast(), monkeypatch, regions=8)
    assert sum("_enter_autocast" in target for target, *_ in graph) == 1


class Drawn(Block):
    """A constant is in its trace, and it writes to a tensor of its own."""

    def forward(self, x, scale=1.0):
        y = torch.tensor([1.0]) + super().forward(x, scale)
        y.mul_(2)
        y[0] = 0
        return y


def test_constants_and_writes_in_blocks(monkeypatch):
    (graph,) = check(Stack(Drawn), monkeypatch, regions=4)
    assert sum("mul_" in target for target, *_ in graph) == 4


def test_a_body_is_traced_once_for_calls_alike(monkeypatch):
    traced = []
    run = bodies.Bodies.result

    def result(self, body, operands, called, trace):
        return run(self, body, operands, called, lambda: (traced.append(called), trace())[1])

    monkeypatch.setattr(bodies.Bodies, "result", result)
    dry(Stack(), monkeypatch, 3)
    assert len(traced) == 1
    traced.clear()
    dry(Stack(scales=(1.0, 2.0, 1.0, 2.0)), monkeypatch, 3)
    assert len(traced) == 2
