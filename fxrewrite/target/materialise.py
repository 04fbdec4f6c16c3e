"""Values for models and inputs that have none: what is to be run cannot stay on the meta device."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from .target import Target


def materialise(target: Target) -> Target:
    """The target with random numbers in place of tensors on the meta device; a program as a module."""
    import torch
    from torch.utils._pytree import tree_map

    generator = torch.Generator().manual_seed(0)

    def real(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.device.type != "meta":
            return value
        if value.is_floating_point():
            return torch.randn(value.shape, generator=generator).to(value.dtype)
        if value.dtype == torch.bool:
            return torch.ones(value.shape, dtype=torch.bool)
        return torch.randint(0, 2, value.shape, generator=generator).to(value.dtype)  # valid as any index

    model = target.model
    if isinstance(model, torch.export.ExportedProgram):
        if not target.args and not target.kwargs and model.example_inputs is not None:
            args, kwargs = model.example_inputs
            target = replace(target, args=tuple(args), kwargs=dict(kwargs))
        model = model.module()
    elif any(tensor.device.type == "meta" for tensor in (*model.parameters(), *model.buffers())):
        model.to_empty(device="cpu")
        with torch.no_grad():
            for parameter in model.parameters():
                fan_in = math.prod(parameter.shape[1:]) or 1
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * fan_in**-0.5)
            for buffer in model.buffers():
                buffer.zero_()
    args, kwargs = tree_map(real, (target.args, target.kwargs))
    return replace(target, model=model, args=args, kwargs=kwargs)
