"""Models on devices that are not there: every tensor is a fake one."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from fxrewrite.capture import reachable_tensors


def on_fake(device: str, model: nn.Module, args: tuple, kwargs: dict) -> tuple[nn.Module, tuple, dict]:
    """A copy of the three with fake tensors on ``device``, of the same sizes and strides. Ties are kept."""
    originals = (model, tuple(args), dict(kwargs))
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        if type(tensor) not in (torch.Tensor, nn.Parameter):
            raise TypeError(f"a tensor of type {type(tensor).__name__} has no twin on {device}")
        with mode:
            twin = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
        return nn.Parameter(twin, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else twin

    memo: dict[int, Any] = {id(t): fake(t) for t in reachable_tensors(originals)}
    return copy.deepcopy(originals, memo)
