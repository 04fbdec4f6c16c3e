"""A run of a model that stops at every matched site, with the values that it gets there."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from .. import capture
from ..backend import default_rules
from ..errors import CaptureError
from ..report import Report
from ..rewriting import Options
from ..rewriting.isolate import Isolated, isolate, read_inputs

Visit = Callable[[Isolated, list[Any]], None]


def visit_sites(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], options: Options, visit: Visit
) -> Report:
    """Run ``model`` as it is, under no_grad, and call ``visit`` at each site that would be replaced.

    Returns the report of what was found. Raises CaptureError where no graph could be captured.
    """
    report = Report()

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        try:
            graph = capture.from_dynamo(gm)
        except CaptureError as error:
            report.note(f"a graph of {len(gm.graph.nodes)} nodes is not visited: {error}")
            return gm.forward
        found, sites = isolate(graph, default_rules(options), options, f"g{len(report.captures)}")
        report.add(found)
        return lambda *inputs: _Visiting(graph, sites, visit).run(*inputs)

    compiled = torch.compile(capture.with_own_code(model.forward), backend=backend, dynamic=False)
    with torch.no_grad():
        compiled(*args, **kwargs)
    if not report.captures:
        raise CaptureError(
            f"{type(model).__name__}: {report.notes[0] if report.notes else 'no graph was captured'}"
        )
    return report


class _Visiting(fx.Interpreter):
    """Runs the graph and keeps what sites need, as long as they need it."""

    def __init__(self, gm: fx.GraphModule, sites: Sequence[Isolated], visit: Visit) -> None:
        super().__init__(gm)
        self._visit = visit
        self._at: dict[str, list[Isolated]] = {}
        for site in sites:
            self._at.setdefault(site.root, []).append(site)
        self._readers = Counter(name for site in sites for name in site.inputs)
        self._values: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.name in self._readers:
            self._values[n.name] = result
        for site in self._at.get(n.name, ()):
            # the operators of a site are not to be seen by whoever watches the model
            with contextlib.ExitStack() as stack:
                stack.enter_context(torch.no_grad())
                self._visit(site, read_inputs(site, self._values))
            for name in site.inputs:
                self._readers[name] -= 1
                if not self._readers[name]:
                    del self._values[name]
        return result
