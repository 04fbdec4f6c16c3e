"""``fxrewrite::linear``: y = x·Wᵀ + b and what follows it, reading the model's own row-major weight."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from .library import define


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


def _quick_gelu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": F.silu,
    "quick_gelu": _quick_gelu,
}
"""The activations of the epilogue by name; "" is none, "quick_gelu" is x·sigmoid(1.702·x)."""


def reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    activation: str = "",
    multiply: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """activation(x·Wᵀ + b) · multiply + residual, all of one floating dtype: result [..., N].

    ``x`` [..., K], ``weight`` [N, K], ``bias`` [N]; ``multiply`` broadcasts to the result (a gate
    [..., N], [B, 1, N] or [N]), ``residual`` has its shape. The kernels round once, at the end.
    Raises `ValueError` for an activation that is not in `ACTIVATIONS`.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation {activation!r} is not one of {sorted(ACTIVATIONS)}")
    y = ACTIVATIONS[activation](F.linear(x, weight, bias))
    if multiply is not None:
        y = y * multiply
    return y if residual is None else y + residual


def fake(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    activation: str = "",
    multiply: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


op = define(
    "linear(Tensor x, Tensor weight, Tensor? bias=None, *, str activation='', Tensor? multiply=None,"
    " Tensor? residual=None) -> Tensor",
    reference=reference,
    fake=fake,
)
