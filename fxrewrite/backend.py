"""The compile door: ``torch.compile(model, backend="fxrewrite")``.

Found by name through the entry-point group ``torch_dynamo_backends``; nothing needs importing.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import fx

from . import capture
from .errors import CaptureError, UsageError
from .quality import is_exact
from .report import Report
from .rewriting import Options, make_options, rewrite_graph, uncaptured_sites

Compiled = Callable[..., Any]


def fxrewrite(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    **others: Any,
) -> Compiled:
    """Backend for ``torch.compile``: rewrite the graph, then hand it on.

    ``options`` are those of ``fxrewrite.rewrite``; ``then`` defaults to "inductor" here. Raises
    UsageError for an unknown option, and for ``mode``, which is Inductor's.
    """
    for name in others:
        raise UsageError(
            f"torch.compile({name}=...) does not go with backend='fxrewrite': use options={{...}}"
        )
    return compile_graph(gm, example_inputs, make_options(dict(options or {}), then="inductor"), Report())


def compile_graph(
    gm: fx.GraphModule, example_inputs: Sequence[Any], options: Options, report: Report, *, apply: bool = True
) -> Compiled:
    """Rewrite one Dynamo graph and add what was found to ``report``.

    The result runs the rewritten graph (the original's, lowered, where no site matched), and the
    original as it is under ``quality("exact")`` and where ``apply`` is False (the dry run).
    """
    weights = frozenset(id(t) for t in example_inputs if isinstance(t, torch.nn.Parameter))
    rewritten = _rewritten(gm, options, report, weights)
    as_is: Compiled = gm.forward
    if not apply or (rewritten is None and options.then == "eager"):
        return as_is
    fast, exact = _lower(rewritten or gm, example_inputs, options), as_is

    def run(*inputs: Any) -> Any:
        return exact(*inputs) if is_exact() else fast(*inputs)

    return run


def _rewritten(
    gm: fx.GraphModule, options: Options, report: Report, weights: frozenset[int]
) -> fx.GraphModule | None:
    """The rewritten graph, or None where no site matched or the graph could not be captured."""
    started = time.perf_counter()
    try:
        graph = capture.from_dynamo(gm)
    except CaptureError as error:
        report.note(f"a graph of {len(gm.graph.nodes)} nodes stays as it is: {error}")
        seen = uncaptured_sites(gm, f"g{len(report.captures)}", str(error))
        seen.weights = weights
        report.add(seen)
        return None
    seconds = time.perf_counter() - started
    name = f"g{len(report.captures)}"
    rules, grad_enabled = default_rules(options), torch.is_grad_enabled()
    try:
        found = rewrite_graph(graph, rules, options, name, grad_enabled=grad_enabled)
    except Exception as error:  # a fault of ours must not be the model's: it runs as it is, and is told
        if os.environ.get("FXREWRITE_DEBUG"):
            raise
        report.note(
            f"a graph of {len(gm.graph.nodes)} nodes stays as it is, by a fault of fxrewrite: "
            f"{type(error).__name__}: {capture.first_line(error)} (FXREWRITE_DEBUG=1 raises it)"
        )
        logging.getLogger("fxrewrite").warning("a graph stays as it is", exc_info=error)
        return None
    found.capture_seconds, found.weights = seconds, weights
    report.add(found)
    return graph if any(site.matched for site in found.sites) else None


def default_rules(options: Options) -> Sequence[Any]:
    """The rules that the options name, or all of ``fxrewrite.patterns``."""
    if options.rules is not None:
        return options.rules
    from .patterns import DEFAULT

    rules: Sequence[Any] = DEFAULT
    return rules


def _lower(gm: fx.GraphModule, example_inputs: Sequence[Any], options: Options) -> Compiled:
    if options.then == "eager":
        forward: Compiled = gm.forward
        return forward
    from torch._inductor.compile_fx import compile_fx

    # Inductor's own attention fusion ignores the dim of the softmax and the shape of a scale (pytorch
    # issue 196468): wrong numbers, or a crash, on what our rules rightly left alone.
    return cast(Compiled, compile_fx(gm, list(example_inputs), config_patches={"pattern_matcher": False}))
