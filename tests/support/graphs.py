"""Graphs for the tests of the pass: traced from a function, rewritten, and told as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from fxrewrite.patterns import DEFAULT
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from fxrewrite import capture
from fxrewrite.matching import Aliasing, Matcher, Rule
from fxrewrite.ops import implementations
from fxrewrite.ops.isa import active_isa
from fxrewrite.report import Site
from fxrewrite.rewriting import Options, choice, rewrite_graph
from tests.support.contract import check
from tests.support.float64 import Float64Mode, widen


def trace(function: Callable[..., Any], *inputs: Any, dynamic: bool = False) -> fx.GraphModule:
    """The pre-dispatch ATen graph of ``function``; all sizes above 1 are symbolic if ``dynamic``."""
    mode = "symbolic" if dynamic else "fake"
    with torch.no_grad():
        return capture.canonical_graph(make_fx(function, pre_dispatch=True, tracing_mode=mode)(*inputs))


def dynamo_graphs(function: Callable[..., Any], *inputs: Any, dynamic: bool | None = None) -> list[Any]:
    """The graphs that Dynamo hands to a backend for ``function``."""
    graphs = []

    def keep(gm, example_inputs):
        gm.meta["inputs"] = example_inputs
        graphs.append(gm)
        return gm.forward

    with torch.no_grad():
        torch.compile(capture.with_own_code(function), backend=keep, dynamic=dynamic)(*inputs)
    return graphs


def matcher(gm: fx.GraphModule) -> Matcher:
    return Matcher(gm.graph, Aliasing(gm.graph))


def node(gm: fx.GraphModule, name: str) -> fx.Node:
    return next(n for n in gm.graph.nodes if n.name == name)


def returned(gm: fx.GraphModule) -> fx.Node:
    """The node of the (first) value that the graph returns."""
    value = gm.graph.output_node().args[0]
    return value[0] if isinstance(value, (tuple, list)) else value


def text(gm: fx.GraphModule) -> str:
    """The calls of a graph, one a line, as ``name = operator(arguments)``."""
    lines = []
    for n in gm.graph.nodes:
        if n.op == "call_function":
            arguments = [str(a) for a in n.args] + [f"{k}={v}" for k, v in n.kwargs.items()]
            lines.append(f"{n.name} = {str(n.target).removeprefix('aten.')}({', '.join(arguments)})")
        elif n.op == "output":
            lines.append(f"return {n.args[0]}")
    return "\n".join(lines)


def lines(block: str) -> str:
    """A block of text of the test's own, without its margin."""
    return "\n".join(line.strip() for line in block.strip().splitlines())


@dataclass
class Rewritten:
    """A graph that went through the driver: the calls before and after, and what was found."""

    gm: fx.GraphModule
    before: str
    after: str
    sites: list[Site]

    def of(self, kind: str) -> Site:
        """The one site of this kind."""
        found = [s for s in self.sites if s.kind == kind]
        assert len(found) == 1, [(s.kind, s.status, s.reason) for s in self.sites]
        return found[0]

    @property
    def matched(self) -> list[str]:
        return [s.kind for s in self.sites if s.matched]


def rewritten(
    function: Callable[..., Any],
    *inputs: Any,
    rules: Sequence[Rule] = DEFAULT,
    dynamic: bool = False,
    grad: bool = False,
    **options: Any,
) -> Rewritten:
    gm = function if isinstance(function, fx.GraphModule) else trace(function, *inputs, dynamic=dynamic)
    before = text(gm)
    found = rewrite_graph(gm, rules, Options(**options), "g", grad_enabled=grad)
    return Rewritten(gm, before, text(gm), found.sites)


def assert_right(found: Rewritten, function: Callable[..., Any], *inputs: Any) -> None:
    """The rewritten graph holds the contract against ``function``, eager and in float64."""
    ours, theirs = ([x.clone() for x in inputs] for _ in range(2))
    with torch.no_grad():
        with Float64Mode():
            exact = function(*(widen(x.clone()) for x in inputs))
        check(found.gm(*ours), function(*theirs), exact)


@pytest.fixture
def any_kernel(monkeypatch):
    """Every op takes every site, so that a test of the rules does not depend on the machine."""
    anything = implementations.Implementation("any", (active_isa(),), lambda *arguments: ())
    takes_all = dict.fromkeys(implementations.IMPLEMENTATIONS, (anything,))
    monkeypatch.setattr(choice, "IMPLEMENTATIONS", takes_all)
