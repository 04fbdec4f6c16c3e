"""``fxrewrite::fp8_linear``: y = x·(s ∘ W)ᵀ + b with W stored in FP8 (W8A16).

The formats are those of the OCP 8-bit floating point specification (OFP8), E4M3 and E5M2, and their
FNUZ variants.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from .library import define


def reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    block: Sequence[int] | None = None,
) -> torch.Tensor:
    """``x`` [..., K] float; ``weight`` [N, K] float8, any strides; result [..., N], dtype of ``x``.

    ``scale`` multiplies the decoded weight: any float tensor that broadcasts to [N, K] (0-d, [1],
    [1, 1] per tensor; [N, 1] per output channel; [K] per input channel), or, with ``block`` = [bn, bk],
    one element for each block of bn x bk, [ceil(N / bn), ceil(K / bk)]. ``bias`` [N] is added unscaled.
    Raises `ValueError` where a grid of blocks has another shape.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    decoded = weight.to(wide)
    if scale is not None:
        decoded = decoded * _expanded(scale.to(wide), weight, block)
    if x.dtype == torch.float16:  # its range would lose small scales that the graph put on the output
        return F.linear(x.to(wide), decoded, None if bias is None else bias.to(wide)).to(x.dtype)
    return F.linear(x, decoded.to(x.dtype), bias)


def _expanded(scale: torch.Tensor, weight: torch.Tensor, block: Sequence[int] | None) -> torch.Tensor:
    if block is None:
        return scale
    (n, k), (rows, columns) = weight.shape, block
    if scale.shape != (-(-n // rows), -(-k // columns)):
        raise ValueError(
            f"scale of shape {list(scale.shape)} for blocks of {rows} x {columns} of a weight of shape"
            f" {[n, k]}"
        )
    return scale.repeat_interleave(rows, 0)[:n].repeat_interleave(columns, 1)[:, :k]


def fake(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    block: Sequence[int] | None = None,
) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


op = define(
    "fp8_linear(Tensor x, Tensor weight, Tensor? scale=None, Tensor? bias=None, int[]? block=None) -> Tensor",
    reference=reference,
    fake=fake,
)
