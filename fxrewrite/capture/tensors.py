"""The tensors that a model and its arguments hold."""

from __future__ import annotations

import gc
import types
import weakref
from typing import Any

import torch
import torch._dynamo
import torch._guards

from ..copies import deep_copy

_OPAQUE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType)


def reachable_tensors(root: Any) -> list[torch.Tensor]:
    """Every tensor that ``copy.deepcopy(root)`` would copy: parameters, buffers, plain attributes."""
    found: list[torch.Tensor] = []
    seen: set[int] = set()
    stack = [root]
    while stack:
        item = stack.pop()
        # deepcopy takes types, modules and functions (with their closures) as they are
        if id(item) in seen or isinstance(item, _OPAQUE):
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            found.append(item)
        elif isinstance(item, weakref.ReferenceType):
            continue
        else:
            stack.extend(gc.get_referents(item))
    return found


def copy_sharing_tensors(model: torch.nn.Module) -> torch.nn.Module:
    """A copy of the model's structure (modules, hooks, plain attributes) on the same tensors."""
    copied: torch.nn.Module = deep_copy(model, {id(t): t for t in reachable_tensors(model)})
    return copied
