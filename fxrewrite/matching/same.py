"""Values that are computed twice: two nodes that call the same operators on the same inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from .aliasing import Aliasing
from .elementwise import constant_number
from .value import View


def same_value(a: Any, b: Any, aliasing: Aliasing) -> bool:
    """Are both the same tensor, or computed alike from the same ones, none of which is written to?"""
    if not isinstance(a, View) or not isinstance(b, View):
        return False
    return a.dims == b.dims and _same(a.node, b.node, aliasing)


def _same(a: Any, b: Any, aliasing: Aliasing) -> bool:
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(_same(x, y, aliasing) for x, y in zip(a, b, strict=True))
    if not isinstance(a, fx.Node) or not isinstance(b, fx.Node):
        return type(a) is type(b) and bool(a == b)
    if aliasing.is_mutated(a) or aliasing.is_mutated(b):
        return False
    if a is b or _same_number(a, b):
        return True
    if a.op != "call_function" or a.target is not b.target or not _is_determined(a.target):
        return False
    return (
        a.kwargs.keys() == b.kwargs.keys()
        and _same(a.args, b.args, aliasing)
        and all(_same(value, b.kwargs[name], aliasing) for name, value in a.kwargs.items())
    )


def _same_number(a: fx.Node, b: fx.Node) -> bool:
    """Are both ``torch.tensor(x)`` of the same number and type?"""
    number, one, other = constant_number(a), a.meta.get("val"), b.meta.get("val")
    if number is None or not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    return number == constant_number(b) and one.dtype == other.dtype and one.dim() == other.dim()


def _is_determined(target: Any) -> bool:
    """Do equal inputs give equal results?"""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return False
    return torch.Tag.nondeterministic_seeded not in target.tags and not target._schema.is_mutable
