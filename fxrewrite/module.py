"""The module door: ``rewrite(model)``, ``analyze(model)`` and ``restore(model)``.

A rewritten module is the model's structure copied on the same tensors, with a ``forward`` that goes
through Dynamo and the driver: state_dict, hooks, attributes and methods are the model's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn

from . import capture
from .backend import compile_graph
from .casting import casting_for_forward, trace_casts, untrace_casts
from .errors import CaptureError, UsageError, first_line
from .layers import take_back_layers, write_out_layers
from .ops.counters import CallsSince
from .report import Report
from .rewriting import Options


class RewrittenForward:
    """The ``forward`` of a rewritten module. Copies and pickles with the module that it belongs to."""

    def __init__(
        self, module: nn.Module, original: Callable[..., Any] | None, options: Options, report: Report
    ) -> None:
        self.module, self.original, self.options, self.report = module, original, options, report
        self._compiled: Callable[..., Any] | None = None
        self._new_graphs = False
        self.layer_notes: list[str] = []  # of what holds for every call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if capture.being_traced():  # somebody else wants the graph: be the plain forward
            return self.eager(*args, **kwargs)
        if problem := capture.uncompilable():
            self.report.note(f"the original code runs while {problem}")
            return self.eager(*args, **kwargs)
        if self._compiled is None:
            self.report.predicted = True  # of a copy too, whatever the original has run
            self._breaks = capture.GraphBreaks()
            self._new_graphs = True  # or none, for reasons to be noted
            self._compiled = torch.compile(capture.with_own_code(self.eager), backend=self._backend)
        with casting_for_forward():
            result = capture.call_compiled(self._compiled, args, kwargs)
        if self._new_graphs:
            self._new_graphs = False
            self._note_breaks()
        return result

    def _note_breaks(self) -> None:
        for reason in self._breaks.take(captured=bool(self.report.captures)):
            self.report.note(reason)

    @property
    def eager(self) -> Callable[..., Any]:
        """The module's own forward."""
        if self.original is not None:
            return self.original
        return cast(Callable[..., Any], type(self.module).forward.__get__(self.module))

    def _backend(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        self._new_graphs = True
        if self.report.predicted:  # from here on the report tells what runs
            self.report.captures.clear()
            self.report.notes[:] = self.layer_notes
            self.report.predicted = False
            self.report.counter = CallsSince()
        return compile_graph(gm, example_inputs, self.options, self.report)

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_compiled": None}
        state.pop("_breaks", None)
        return state

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.eager  # so that inspect.signature() shows the model's parameters

    def __getattr__(self, name: str) -> Any:
        if name in _OF_FUNCTIONS:  # torch.export reads the code
            return getattr(self.eager, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


_OF_FUNCTIONS = ("__code__", "__defaults__", "__kwdefaults__", "__name__", "__qualname__")


def rewrite_module(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    options: Options,
    *,
    inplace: bool,
) -> nn.Module:
    """See ``fxrewrite.rewrite``."""
    _check_model(model)
    if is_rewritten(model):
        raise UsageError(f"{type(model).__name__} is rewritten already: call fxrewrite.restore(model) first")
    _check_inputs(args, kwargs)
    report = _predict(model, args, kwargs, options) if args or kwargs else Report(predicted=True)
    target = model if inplace else _copy(model)
    notes = write_out_layers(target)
    trace_casts(target)
    original = target.__dict__.get("forward")
    forward = target.__dict__["forward"] = RewrittenForward(target, original, options, report)
    forward.layer_notes = notes
    for note in notes:
        report.note(note)
    if not hasattr(target, "report"):  # the model's own goes first; ours is `model.forward.report` too
        target.__dict__["report"] = report
    return target


def restore_module(model: nn.Module) -> nn.Module:
    """See ``fxrewrite.restore``."""
    _check_model(model)
    if not is_rewritten(model):
        raise UsageError(f"{type(model).__name__} is not rewritten: there is nothing to restore")
    untrace_casts(model)
    forward = model.__dict__.pop("forward")
    if model.__dict__.get("report") is forward.report:
        del model.__dict__["report"]
    if forward.original is not None:
        model.__dict__["forward"] = forward.original
    take_back_layers(model)
    return model


def is_rewritten(model: nn.Module) -> bool:
    return isinstance(model.__dict__.get("forward"), RewrittenForward)


def analyze_module(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None, options: Options
) -> Report:
    """See ``fxrewrite.analyze``: the driver over fake tensors, nothing computed and nothing applied."""
    _check_model(model)
    _check_inputs(args, kwargs)
    report = Report(predicted=True)
    try:
        call = capture.fake_call(model, args, kwargs or {})
    except Exception as error:
        raise CaptureError(
            f"{type(model).__name__} cannot be copied for the dry run: {type(error).__name__}: "
            f"{first_line(error)}"
        ) from error

    def dry(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return compile_graph(gm, example_inputs, options, report, apply=False)

    for note in call.notes:
        report.note(note)
    problem, breaks = capture.run_fake(call, dry)
    for reason in breaks:
        report.note(reason)
    if problem is not None and not report.captures:
        raise CaptureError(f"{type(model).__name__} cannot be captured: {problem}")
    if problem is not None:
        report.note(f"captured in part, the rest is found at the first call: {problem}")
    return report


def _predict(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None, options: Options
) -> Report:
    """The dry run's report; where it gets nowhere the first call may still, so that is only noted."""
    try:
        return analyze_module(model, args, kwargs, options)
    except CaptureError as error:
        return Report(notes=[f"no dry run, sites are found at the first call: {error}"], predicted=True)


def _check_model(model: Any) -> None:
    if isinstance(model, torch.jit.ScriptModule):
        raise UsageError("a ScriptModule has no code that can be captured: give the module it was made from")
    if isinstance(model, nn.Module):
        return
    if isinstance(getattr(model, "components", None), Mapping):
        advice = "give one of its components, or call fxrewrite.rewrite on the whole, without inputs"
    elif callable(model):
        advice = "call it, if it makes a model, and give the result"
    else:
        advice = "give the model itself"
    name = model.__name__ if isinstance(model, type) else f"an object of type {type(model).__name__}"
    raise UsageError(f"model: expected an nn.Module or an ExportedProgram, got {name}; {advice}")


def _check_inputs(args: Any, kwargs: Any) -> None:
    if isinstance(args, (torch.Tensor, str, bytes)) or not isinstance(args, Sequence):
        raise UsageError(
            f"args: expected a tuple of the model's positional arguments, got {type(args).__name__}; "
            "write (x,) for a single one"
        )
    if kwargs is None:
        return
    if not isinstance(kwargs, Mapping):
        raise UsageError(f"kwargs: expected a dict of keyword arguments, got {type(kwargs).__name__}")
    for name in kwargs:
        if not isinstance(name, str):
            raise UsageError(f"kwargs: expected names, as strings, got the key {name!r}")


def _copy(model: nn.Module) -> nn.Module:
    try:
        return capture.copy_sharing_tensors(model)
    except Exception as error:
        raise CaptureError(
            f"{type(model).__name__} cannot be copied ({type(error).__name__}: {first_line(error)}); "
            "rewrite it in place: fxrewrite.rewrite(model, ..., inplace=True)"
        ) from error


__all__ = ["RewrittenForward", "analyze_module", "is_rewritten", "restore_module", "rewrite_module"]
