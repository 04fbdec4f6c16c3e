"""``fxrewrite::linear``: y = x·Wᵀ + b, reading the model's own row-major weight."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .library import define


def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``x`` [..., K], ``weight`` [N, K], ``bias`` [N], all of one floating dtype: result [..., N]."""
    return F.linear(x, weight, bias)


def fake(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


op = define("linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor", reference=reference, fake=fake)
