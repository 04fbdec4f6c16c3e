"""Code in float64, whatever dtypes it asks for: what errors are measured against."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map


def widened(value: Any) -> Any:
    """A floating tensor as float64, which is exact; a narrow floating dtype as float64; else as it is."""
    if isinstance(value, torch.dtype):
        return torch.float64 if value.is_floating_point else value
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.to(torch.float64)
    return value


class InFloat64(TorchDispatchMode):
    """Every operator inside computes on float64, and gives it, where it would on another floating dtype."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.inplace_view in func.tags or func._schema.is_mutable:
            raise NotImplementedError(f"{func} writes in place")
        args, kwargs = tree_map(widened, (args, kwargs or {}))
        return tree_map(widened, func(*args, **kwargs))
