"""Matched sites as programs of their own: the original code and its replacement, on the same inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ..matching import Rule
from ..report import Capture, Site
from .candidates import Candidate
from .driver import Pass, no_new_guards
from .functional import simplify
from .options import Options


@dataclass(frozen=True)
class Isolated:
    """A matched site: ``before`` and ``after`` take the values of the nodes ``inputs`` and give the result.

    ``root`` is the node of the graph that has this result.
    """

    site: Site
    before: fx.GraphModule
    after: fx.GraphModule
    inputs: tuple[str, ...]
    root: str


def isolate(
    gm: fx.GraphModule, rules: Sequence[Rule], options: Options, name: str
) -> tuple[Capture, list[Isolated]]:
    """The matched sites of ``gm``, a functional pre-dispatch ATen graph, which is not rewritten."""
    with no_new_guards(gm):
        simplify(gm)
        pass_ = _Isolating(gm, rules, options, grad_enabled=False)
        sites = pass_.run()
    for index, site in enumerate(sites):
        site.id = f"{name}.{index}"
    gm.recompile()
    return Capture(name, len(gm.graph.nodes), sites, work=pass_.work.total), pass_.isolated


class _Isolating(Pass):
    """A run that takes the chosen sites out instead of putting their replacements in."""

    isolated: list[Isolated]

    def _apply(self, found: list[Candidate], chosen: list[Candidate]) -> None:
        order = {node: index for index, node in enumerate(self.gm.graph.nodes)}
        self.isolated = [_isolated(self.gm, candidate, order) for candidate in chosen]
        super()._apply(found, [])


def _isolated(gm: fx.GraphModule, candidate: Candidate, order: dict[fx.Node, int]) -> Isolated:
    match, result = candidate.match, candidate.result
    assert result is not None  # a chosen candidate was built
    # constants and parameters are inputs, like all that is computed outside
    inside = [n for n in sorted(match.seen | {match.root}, key=order.__getitem__) if n.op == "call_function"]
    parts = (inside, match.root), (candidate.inserted, result)
    inputs = list(
        dict.fromkeys(
            operand
            for nodes, end in parts
            for node in [*nodes, end]
            for operand in ([node] if node not in nodes else node.all_input_nodes)
            if operand not in nodes
        )
    )
    before, after = (_program(gm, nodes, end, inputs) for nodes, end in parts)
    return Isolated(candidate.site, before, after, tuple(n.name for n in inputs), match.root.name)


def _program(
    gm: fx.GraphModule, nodes: Sequence[fx.Node], end: fx.Node, inputs: Sequence[fx.Node]
) -> fx.GraphModule:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta.update(node.meta)
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(copies[end])
    graph.eliminate_dead_code()
    return fx.GraphModule(torch.nn.Module(), graph)


def read_inputs(isolated: Isolated, values: dict[str, Any]) -> list[Any]:
    """The inputs of an isolated site out of the graph's values by name."""
    return [values[name] for name in isolated.inputs]
