"""``fxrewrite::fp8_linear``: y = x·(s ∘ W)ᵀ + b with W stored in FP8 (W8A16).

The formats are those of the OCP 8-bit floating point specification (OFP8), E4M3 and E5M2.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .library import define


def reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """``x`` [..., K] float; ``weight`` [N, K] float8, any strides; result [..., N], dtype of ``x``.

    ``scale`` multiplies the decoded weight: any float tensor that broadcasts to [N, K] (0-d, [1],
    [1, 1] per tensor; [N, 1] per output channel ...). ``bias`` [N] is added unscaled.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    decoded = weight.to(wide)
    if scale is not None:
        decoded = decoded * scale.to(wide)
    return F.linear(x, decoded.to(x.dtype), bias)


def fake(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


op = define(
    "fp8_linear(Tensor x, Tensor weight, Tensor? scale=None, Tensor? bias=None) -> Tensor",
    reference=reference,
    fake=fake,
)
