"""Models on devices that are not there: every tensor is a fake one."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import fxrewrite
from fxrewrite.capture import reachable_tensors


def on_fake(device: str, model: nn.Module, args: tuple, kwargs: dict) -> tuple[nn.Module, tuple, dict]:
    """A copy of the three with fake tensors on ``device``, of the same sizes and strides. Ties are kept.

    Raises `TypeError` for what has no such copy: tensor subclasses, and modules whose forward was replaced by
    a function, which goes on calling the module that it was made for.
    """
    bound = next((name for name, m in model.named_modules() if "forward" in m.__dict__), None)
    if bound is not None:
        raise TypeError(f"the forward of {bound or 'the model'} is bound to the original")
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


CUDA_KERNELS = {"cuda:stream", "cuda:decode", "cuda:tokens", "cuda:channels", "cuda:framework"}


def sites(model, args, kwargs) -> list[fxrewrite.report.Site]:
    torch._dynamo.reset()
    with torch.no_grad():
        return fxrewrite.analyze(model, args, kwargs).sites


def counted(found) -> Counter[tuple]:
    """Sites by what they compute. What follows a layer is in the site only if a kernel takes it too."""
    main = {"linear": ("weight",), "fp8_matmul": ("weight",)}
    return Counter(
        (site.kind, *(text for name, text in site.operands.items() if name in main.get(site.kind, (name,))))
        for site in found
    )
