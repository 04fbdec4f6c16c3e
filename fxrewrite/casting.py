"""Modules that cast themselves around their forward: stored in FP8, computing in bfloat16.

A hook that calls ``module.to(bfloat16)`` before the forward and ``module.to(float8_e4m3fn)`` after it swaps
the data of parameters, which Dynamo cannot trace: each one splits the graph. In a rewritten module such a
call casts for the forward only: what the forward reads is the parameter's cast, the parameter stays.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


class _Running:
    """How many rewritten forwards are running."""

    depth = 0


@contextlib.contextmanager
def casting_for_forward() -> Iterator[None]:
    """While active, the casts of modules that ``trace_casts`` prepared last for the forward only."""
    _Running.depth += 1
    try:
        yield
    finally:
        _Running.depth -= 1


def trace_casts(model: nn.Module) -> None:
    """Prepare ``model`` in place: each of its modules that holds FP8 parameters, or has one that does."""
    for module in model.modules():
        if "to" not in module.__dict__ and any(p.dtype in FP8 for p in module.parameters()):
            module.__dict__["to"] = types.MethodType(_to, module)


def untrace_casts(model: nn.Module) -> None:
    """Undo ``trace_casts``."""
    for module in model.modules():
        if getattr(module.__dict__.get("to"), "__func__", None) is _to:
            del module.__dict__["to"]


def _to(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    """``module.to``; inside a rewritten forward, or a graph that is being traced, one to a dtype casts what
    the forward reads."""
    dtype = kwargs["dtype"] if "dtype" in kwargs else args[0] if args else None
    moves = "device" in kwargs or "tensor" in kwargs or len(args) > 1
    if moves or not isinstance(dtype, torch.dtype) or not (torch.compiler.is_compiling() or _Running.depth):
        return type(module).to(module, *args, **kwargs)
    for part in module.modules():
        for stored in (part._parameters, part._buffers):
            for name, tensor in stored.items():
                if name in part.__dict__:  # an earlier cast: attributes of the instance come first
                    del part.__dict__[name]
                if tensor is not None and tensor.is_floating_point() and tensor.dtype != dtype:
                    part.__dict__[name] = tensor.to(dtype)
    return module
