"""The compile door: ``torch.compile(model, backend="fxrewrite")``.

Found by name through the entry-point group ``torch_dynamo_backends``; nothing needs importing.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import fx

from . import capture
from .errors import CaptureError, UsageError, first_line, is_strict
from .ops.counters import CallsSince
from .ops.library import signature
from .quality import in_kernels, is_exact
from .report import Capture, Report
from .rewriting import Options, make_options, rewrite_graph, uncaptured_sites

Compiled = Callable[..., Any]

log = logging.getLogger("fxrewrite")
_report = Report()


def take_report(*, reset: bool) -> Report:
    """See ``fxrewrite.compile_report``."""
    global _report
    report = _report
    if reset:
        _report = Report()
    return report


def fxrewrite(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    **others: Any,
) -> Compiled:
    """Backend for ``torch.compile``: rewrite the graph, then hand it on.

    ``options`` are those of ``fxrewrite.rewrite``; ``then`` defaults to "inductor" here. What was found
    is in ``fxrewrite.compile_report()`` and, with TORCH_LOGS="+fxrewrite", logged. Raises UsageError for
    an unknown option, and for ``mode``, which is Inductor's.
    """
    for name in others:
        raise UsageError(
            f"torch.compile({name}=...) does not go with backend='fxrewrite': use options={{...}}"
        )
    _report.counter = _report.counter or CallsSince()
    return compile_graph(gm, example_inputs, make_options(dict(options or {}), then="inductor"), _report)


def compile_graph(
    gm: fx.GraphModule, example_inputs: Sequence[Any], options: Options, report: Report, *, apply: bool = True
) -> Compiled:
    """Rewrite one Dynamo graph and add what was found to ``report``.

    The result runs the rewritten graph (the original's, lowered, where no site matched), and the
    original as it is under ``quality("exact")`` and where ``apply`` is False (the dry run).
    """
    weights = frozenset(id(t) for t in example_inputs if isinstance(t, torch.nn.Parameter))
    exact: Compiled = gm.forward
    fast: Compiled | None = None
    try:
        started = time.perf_counter()
        try:
            graph = capture.from_dynamo(gm)
        except CaptureError:
            if options.then != "eager" or not capture.has_inner_tensors(gm):
                raise
            fast = _on_inner_tensors(gm, example_inputs, options, report, weights, may_guard=apply)
        else:
            seconds = time.perf_counter() - started
            matched = _rewrite(graph, options, report, weights, seconds, may_guard=apply)
            gm = graph if matched else gm
            fast = graph.forward if matched else None
    except CaptureError as error:
        note = f"a graph of {len(gm.graph.nodes)} nodes stays as it is: {error}"
        report.note(note)
        log.warning(note)
        seen = uncaptured_sites(gm, f"g{len(report.captures)}", str(error))
        seen.weights = weights
        report.add(seen)
    if not apply or (fast is None and options.then == "eager"):
        return exact
    lowered = fast if options.then == "eager" and fast else _inductor(gm, example_inputs)

    def run(*inputs: Any) -> Any:
        # our operators have no derivatives, and tangents are computed under no_grad() too
        if is_exact() or capture.computes_tangents():
            return exact(*inputs)
        with in_kernels():
            return lowered(*inputs)

    return run


def _rewrite(
    graph: fx.GraphModule,
    options: Options,
    report: Report,
    weights: frozenset[int],
    seconds: float,
    *,
    may_guard: bool = False,
) -> bool:
    """Rewrite a captured graph in place and report it. Returns whether a site matched; where the pass
    itself failed, ``graph`` is not to be used. ``may_guard``: see ``rewrite_graph``.
    """
    name = f"g{len(report.captures)}"
    nodes, rules = len(graph.graph.nodes), default_rules(options)
    try:
        found = rewrite_graph(
            graph, rules, options, name, grad_enabled=torch.is_grad_enabled(), may_guard=may_guard
        )
    except Exception as error:  # a fault of ours must not be the model's: it runs as it is, and is told
        if is_strict():
            raise
        report.note(
            f"a graph of {nodes} nodes stays as it is, by a fault of fxrewrite: "
            f"{type(error).__name__}: {first_line(error)} (FXREWRITE_STRICT=1 raises it)"
        )
        log.warning("a graph stays as it is", exc_info=error)
        return False
    found.capture_seconds, found.weights = seconds, weights
    report.add(found)
    _log(found)
    return any(site.matched for site in found.sites)


def _log(found: Capture) -> None:
    log.info("%s: %s", found.name, Report([found]).summary())
    for site in found.sites:
        log.debug(
            "%s %s %s at %s: %s",
            site.id,
            site.kind,
            site.status,
            site.location,
            site.implementation or site.reason,
        )


def _on_inner_tensors(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    options: Options,
    report: Report,
    weights: frozenset[int],
    *,
    may_guard: bool,
) -> Compiled | None:
    """Rewrite the graph on the tensors inside of its inputs: the local shards of a DTensor, say.

    Returns what runs it on the inputs themselves, None where no site matched.
    """
    started = time.perf_counter()
    matched = False

    def rewrite(graph: fx.GraphModule) -> fx.GraphModule:
        nonlocal matched
        before = copy.deepcopy(graph)
        seconds = time.perf_counter() - started
        canonical = capture.canonical_graph(graph)
        matched = _rewrite(canonical, options, report, weights, seconds, may_guard=may_guard)
        return graph if matched else before

    compiled = capture.on_inner_tensors(gm, example_inputs, rewrite)
    return compiled if matched else None


def default_rules(options: Options) -> Sequence[Any]:
    """The rules that the options name, or all of ``fxrewrite.patterns``."""
    if options.rules is not None:
        return options.rules
    from .patterns import DEFAULT

    rules: Sequence[Any] = DEFAULT
    return rules


def _inductor(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
    from torch._inductor.compile_fx import compile_fx

    # Inductor's own attention fusion ignores the dim of the softmax and the shape of a scale (pytorch
    # issue 196468): wrong numbers, or a crash, on what our rules rightly left alone.
    with capture.cached_as(cache_key()):
        return cast(Compiled, compile_fx(gm, list(example_inputs), config_patches={"pattern_matcher": False}))


def cache_key() -> str:
    """What torch's compile caches must not mix: artifacts of another version of our operators."""
    from . import __version__

    return f"fxrewrite {__version__} {signature()}"
