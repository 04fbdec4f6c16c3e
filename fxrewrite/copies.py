"""Deep copies of modules in which closures refer to the copy."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Iterator
from typing import Any

from torch import nn


def deep_copy(root: Any, memo: dict[int, Any]) -> Any:
    """``copy.deepcopy(root, memo)``, where functions are copied too if they close over a module of ``root``.

    ``copy`` takes functions as they are, so that a ``forward`` that a library wrapped for a module would
    go on calling the original.
    """
    clones: list[tuple[types.FunctionType, types.FunctionType]] = []
    for function in _closures(root):
        cells = tuple(types.CellType() for _ in function.__closure__ or ())
        clone = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, cells
        )
        clone.__kwdefaults__ = function.__kwdefaults__
        clone.__dict__.update(function.__dict__)
        memo[id(function)] = clone
        clones.append((function, clone))
    copied = copy.deepcopy(root, memo)
    for function, clone in clones:
        for cell, new in zip(function.__closure__ or (), clone.__closure__ or (), strict=True):
            for contents in _contents(cell):
                new.cell_contents = copy.deepcopy(contents, memo)
    return copied


def _closures(root: Any) -> list[types.FunctionType]:
    """The functions that stand for a method of a module in ``root`` and close over one of its modules,
    and those that they close over in turn."""
    models = [item for item in (root if isinstance(root, tuple) else (root,)) if isinstance(item, nn.Module)]
    modules = [module for model in models for module in model.modules()]
    known = {id(module) for module in modules}
    found: dict[int, types.FunctionType] = {}
    for module in modules:
        for value in list(vars(module).values()):
            if not isinstance(value, (functools.partial, types.MethodType, types.FunctionType)):
                continue
            for item in _reachable(value, known):
                if not isinstance(item, types.FunctionType) or not item.__closure__ or id(item) in found:
                    continue
                if any(id(inner) in known for inner in _reachable(item, known)):
                    found[id(item)] = item
    return list(found.values())


def _reachable(root: Any, known: set[int]) -> Iterator[Any]:
    """``root`` and what it refers to through closures, methods, partials, containers and plain objects;
    not what lies behind the ``known`` objects."""
    pending, seen = [root], set()
    while pending:
        item = pending.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        yield item
        if id(item) in known or isinstance(item, (type, types.ModuleType, nn.Module)):
            continue
        if isinstance(item, types.FunctionType):
            for cell in item.__closure__ or ():
                pending.extend(_contents(cell))
        elif isinstance(item, types.MethodType):
            pending.append(item.__self__)
        elif isinstance(item, functools.partial):
            pending.extend((item.func, *item.args))
        elif isinstance(item, (list, tuple)):
            pending.extend(item)
        elif isinstance(item, dict):
            pending.extend(item.values())
        elif hasattr(item, "__dict__"):
            pending.extend(vars(item).values())


def _contents(cell: types.CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # not assigned yet
        return []
