"""Calls of models in the state that Dynamo, tracers and modes are in."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable
from typing import Any, cast

import torch
import torch._dynamo
import torch._guards


def call_compiled(compiled: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call what ``torch.compile`` made, so that what it compiles now sees hooks that are added later.

    Dynamo leaves out the guards on modules without hooks unless told otherwise. The setting belongs to
    this thread, and to this call.
    """
    config = torch._dynamo.config
    before = config.skip_nnmodule_hook_guards
    config.skip_nnmodule_hook_guards = False
    try:
        return compiled(*args, **kwargs)
    finally:
        config.skip_nnmodule_hook_guards = before


def computes_tangents() -> bool:
    """Is forward-mode differentiation on? It is so under ``torch.no_grad()`` too."""
    return torch.autograd.forward_ad._current_level >= 0


def uncompilable() -> str:
    """Why Dynamo must not see a call now, "" where it may.

    Under a TorchDispatchMode it compiles nothing, and leaves the code alone ever after. A hook on all
    modules, registered since a graph was compiled, would not run.
    """
    if torch._C._len_torch_dispatch_stack() > 0:
        return "a TorchDispatchMode or a tracer is active"
    if torch.fx._symbolic_trace.is_fx_symbolic_tracing():
        return "torch.fx traces"  # in whatever thread: torch.compile raises then
    if torch.nn.modules.module._has_any_global_hook():
        return "a hook on all modules is registered"
    return ""


def being_traced() -> bool:
    """Is the caller being traced into a graph, by Dynamo or ``torch.jit.trace``?

    ``torch.compiler.is_compiling()`` will not do: it is True in all threads while one of them compiles.
    """
    return torch.compiler.is_dynamo_compiling() or torch._C._get_tracing_state() is not None


def computing() -> contextlib.AbstractContextManager[Any]:
    """A context in which operators on real tensors compute, a surrounding fake mode notwithstanding."""
    context: contextlib.AbstractContextManager[Any] = torch._subclasses.fake_tensor.unset_fake_temporarily()
    return context


def with_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with a code object of its own.

    Dynamo keeps what it compiled, and counts recompilations, by code object: sharing one, models of
    the same class would use up each other's limit, and the dry run that of the real one.
    """
    if isinstance(function, types.MethodType) and isinstance(function.__func__, types.FunctionType):
        if not function.__func__.__code__.co_filename.startswith(_TORCH):
            return types.MethodType(_cloned(function.__func__), function.__self__)
    elif isinstance(function, types.FunctionType) and not function.__code__.co_filename.startswith(_TORCH):
        return _cloned(function)

    # Dynamo starts no frame in torch's own files: start in one of ours
    def forward(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return _cloned(forward)


_TORCH = torch.__file__.rsplit("/", 1)[0]


def _cloned(function: types.FunctionType | Callable[..., Any]) -> Callable[..., Any]:
    original = cast(types.FunctionType, function)
    clone = types.FunctionType(
        original.__code__.replace(),
        original.__globals__,
        original.__name__,
        original.__defaults__,
        original.__closure__,
    )
    clone.__kwdefaults__ = original.__kwdefaults__
    return clone
