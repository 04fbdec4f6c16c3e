"""The dry run: a model goes through Dynamo with fake tensors, and nothing is computed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch._dynamo
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from ..casting import trace_casts
from ..copies import deep_copy
from ..errors import first_line
from ..layers import write_out_layers
from .breaks import GraphBreaks
from .calls import with_own_code
from .repeats import traced_once
from .tensors import reachable_tensors


@dataclass
class FakeCall:
    """A model and its arguments with every tensor replaced by a fake one: nothing is computed."""

    mode: FakeTensorMode
    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    notes: list[str]


def fake_call(model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> FakeCall:
    """Copy ``model`` and arguments with fake tensors in place of all tensors.

    Tensors on the meta device become fake CPU tensors, so that a configuration can be scanned
    without its weights. Neither the model nor the arguments are changed.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    originals = (model, tuple(args), dict(kwargs))
    memo: dict[int, Any] = {id(t): _fake_tensor(mode, t) for t in reachable_tensors(originals)}
    probe, fake_args, fake_kwargs = deep_copy(originals, memo)
    notes = write_out_layers(probe)
    trace_casts(probe)
    return FakeCall(mode, probe, fake_args, fake_kwargs, notes)


def run_fake(call: FakeCall, backend: Callable[..., Any]) -> tuple[str | None, list[str]]:
    """Run the model through Dynamo on fake tensors.

    Returns what stopped it, None if nothing did, and what Dynamo left to Python, a line each. Where the
    model is one graph, the run ends with its capture, and repeated blocks are traced once.
    """
    forward = call.model.forward
    breaks = GraphBreaks()
    with traced_once(call.model) as repeats:
        if repeats and not torch.is_grad_enabled():  # through OWN_STORAGE no gradient flows
            whole = _Whole(backend)
            problem = _run(call, forward, whole, fullgraph=True)
            if whole.captured:
                return problem, breaks.take(captured=True)
            breaks.forget()
    captured = False

    def noticed(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        nonlocal captured
        captured = True
        compiled: Callable[..., Any] = backend(gm, inputs)
        return compiled

    problem = _run(call, forward, noticed)
    return problem, breaks.take(captured=captured)


def _run(
    call: FakeCall, forward: Callable[..., Any], backend: Callable[..., Any], *, fullgraph: bool = False
) -> str | None:
    call.model.forward = torch.compile(with_own_code(forward), backend=backend, fullgraph=fullgraph)
    # A collection after each graph would look at all that torch has imported.
    uncollected = torch._dynamo.config.patch(run_gc_after_compile=False)
    try:
        with call.mode, uncollected:
            call.model(*call.args, **call.kwargs)
    except _Captured:
        return None
    except Exception as error:  # whatever stops the dry run is what it reports
        return _what_was_wrong(error)
    return None


class _Captured(BaseException):
    """The graph of the whole model has been captured: its guards and its run have nothing to add.

    Not an Exception: Dynamo wraps those of backends.
    """


class _Whole:
    """A backend that hands the one graph of a model on, and ends the run there."""

    def __init__(self, backend: Callable[..., Any]) -> None:
        self._backend = backend
        self.captured = False

    def __call__(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> NoReturn:
        self.captured = True
        self._backend(gm, inputs)
        raise _Captured


_INNER = re.compile(r"got (?P<type>\w+)\((?P<quote>['\"])(?P<text>.*)(?P=quote)\)\s*$", re.MULTILINE)


def _what_was_wrong(error: BaseException) -> str:
    """The error that the model itself would raise, out of what Dynamo wrapped around it."""
    while isinstance(error, torch._dynamo.exc.TorchDynamoException):
        within = error.__cause__ or getattr(error, "inner_exception", None)  # a backend's fault
        if within is None:
            break
        error = within
    inner = _INNER.search(str(error))
    if inner is None:
        return f"{type(error).__name__}: {first_line(error)}"
    line = inner["text"].split(r"\n")[0]  # of a repr
    return f"{inner['type']}: {line}"


def _fake_tensor(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type == "meta":
        with mode:
            fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    else:
        fake = mode.from_tensor(tensor.detach())
    if isinstance(tensor, torch.nn.Parameter):
        fake = torch.nn.Parameter(fake, requires_grad=tensor.requires_grad)
    elif tensor.requires_grad:
        fake.requires_grad_()
    for name, mark in vars(tensor).items():
        if name.startswith("_dynamo_"):  # mark_dynamic, maybe_mark_dynamic, mark_unbacked, mark_static
            setattr(fake, name, mark)
    return fake
