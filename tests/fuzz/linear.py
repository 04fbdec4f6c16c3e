"""Random linear layers, with stored weights in floating point and in FP8."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .draw import BF16, F16, F32, F64, Choices, Growing, Inputs, Module

Layer = Callable[[Tensor, Tensor, Any], Tensor]
LAYERS: dict[str, Layer] = {
    "F.linear": lambda x, w, b: F.linear(x, w, b),
    "matmul": lambda x, w, b: x @ w.t() if b is None else x @ w.t() + b,
    "bias first": lambda x, w, b: x @ w.t() if b is None else b + torch.matmul(x, w.mT),
    "apart": lambda x, w, b: F.linear(x, w) if b is None else F.linear(x, w) + b,
    "addmm": lambda x, w, b: _rows(x, lambda y: y @ w.t() if b is None else torch.addmm(b, y, w.t())),
    "addmm, scaled": lambda x, w, b: _rows(
        x, lambda y: y @ w.t() if b is None else torch.addmm(b, y, w.t(), beta=0.5, alpha=2)
    ),
    "mm": lambda x, w, b: _rows(x, lambda y: torch.mm(y, w.t()) if b is None else torch.mm(y, w.t()) + b),
    "einsum": lambda x, w, b: torch.einsum("...k,nk->...n", x, w) + (0 if b is None else b),
    "subtracted": lambda x, w, b: F.linear(x, w) if b is None else F.linear(x, w) - b,
    "bias in place": lambda x, w, b: F.linear(x, w) if b is None else F.linear(x, w).add_(b),
    "transposed": lambda x, w, b: (w @ x.mT).mT if b is None else (w @ x.mT).mT + b,
    "bias twice": lambda x, w, b: F.linear(x, w, b) if b is None else F.linear(x, w, b) + b,
    "bias of a row": lambda x, w, b: F.linear(x, w) + x.mean(-1, keepdim=True),
}  # fmt: skip
AFTER: dict[str, Callable[[Tensor], Any]] = {
    "": lambda y: y,
    "gelu": F.gelu,
    "in place": lambda y: y.mul_(2),
    "twice": lambda y: (y, y.relu()),
    "view": lambda y: y.reshape(-1),
    "itself": lambda y: y + y,
}


def _outputs(value: Any) -> Sequence[Tensor]:
    return [value] if isinstance(value, Tensor) else value


def _rows(x: Tensor, layer: Callable[[Tensor], Tensor]) -> Tensor:
    return layer(x.reshape(-1, x.shape[-1])).unflatten(0, x.shape[:-1])


def _x(c: Choices, inputs: Inputs, width: int, dtype: torch.dtype) -> int:
    rank = c.of("rank", [2, 3, 4], [2, 3, 1])
    rows = Growing(c.of("rows", [1, 2, 4, 5, 31, 40], [2, 1, 1, 2, 1, 1]))
    return inputs.normal("x", [*[1, 2, rows][4 - rank :], width], dtype)


def layers(c: Choices) -> Module:
    """One layer, or two on one input or after each other."""
    dtype, inputs = c.dtype(), Inputs(c)
    k, n = c.size("K"), max(1, c.size("N"))
    k = max(1, k)
    x = _x(c, inputs, k, dtype)
    w = inputs.normal("w", [n, k], dtype, factor=k**-0.5)
    bias = inputs.normal("b", [n], dtype, factor=0.3) if c.chance("bias", 0.6) else None
    layer, after = c.named("layer", LAYERS), c.named("after", AFTER)
    second = c.of("second", ["", "beside", "behind", "same weight"], [5, 1, 1, 1])
    w2 = inputs.normal("w2", [5, n if second == "behind" else k], dtype) if second else None
    written = c.chance("weight overwritten in between", 0.04)

    def function(*t: Tensor) -> Any:
        b = None if bias is None else t[bias]
        weight = t[w]
        y = layer(t[x], weight, b)
        if second == "behind":
            return after(F.linear(y.relu(), t[w2]))
        if written:
            weight = weight.clone().mul_(2)
        if second:
            other = weight if second == "same weight" else t[w2]
            return [*_outputs(after(y)), F.linear(t[x], other)]
        return after(y)

    return Module(function, inputs)


Decode = Callable[[Tensor, Tensor, torch.dtype], Tensor]
DECODES: dict[str, Decode] = {
    "cast, times": lambda w, s, d: w.to(d) * s.to(d),
    "times, cast": lambda w, s, d: (w.float() * s.float()).to(d),
    "scale first": lambda w, s, d: s.to(d) * w.to(d),
    "divided": lambda w, s, d: w.to(d) / s.to(d),
    "cast only": lambda w, s, d: w.to(d),
    "through half": lambda w, s, d: (w.half() * s.half()).to(d),
    "added": lambda w, s, d: w.to(d) + s.to(d),
}


def fp8(c: Choices) -> Module:
    dtype, inputs = c.of("dtype", [BF16, F32, F16], [6, 1, 1]), Inputs(c)
    k, n = max(1, c.size("K")), max(1, c.size("N"))
    n = k if c.chance("square", 0.3) else n
    kind = c.of("fp8", [torch.float8_e4m3fn, torch.float8_e5m2], [3, 1])
    x = _x(c, inputs, k, dtype)
    codes = c.chance("all codes", 0.15)

    def make(generator: torch.Generator, grown: int) -> Tensor:
        if codes:
            return torch.randint(256, (n, k), generator=generator, dtype=torch.uint8).view(kind)
        return (torch.randn(n, k, generator=generator) * 2).to(kind)

    w = inputs.add([n, k], make)
    shape = c.of("scale of", [[], [1], [n, 1], [1, k], [1, 1], [n]], [3, 1, 2, 0.7, 0.7, 0.7])
    if shape == [n] and n != k:
        shape = [1]
    scale_dtype = c.of("scale dtype", [F32, dtype, F64], [4, 2, 0.5])
    s = inputs.add(
        shape, lambda g, _: (torch.rand(shape, generator=g, dtype=F64) * 0.1 + 0.02).to(scale_dtype)
    )
    bias = inputs.normal("b", [n], dtype, factor=0.3) if c.chance("bias", 0.5) else None
    on_output = shape in ([], [1]) and c.chance("scaled output", 0.25)
    decode = c.named("decoded", DECODES)
    orientation = c.of("product", ["F.linear", "@ t", "addmm", "not transposed"], [4, 2, 1, 1])

    def function(*t: Tensor) -> Any:
        weight = t[w].to(dtype) if on_output else decode(t[w], t[s], dtype)
        b = None if bias is None else t[bias]
        if orientation == "not transposed" and n == k:
            y = t[x] @ weight
            return y if b is None else y + b
        if on_output:
            y = F.linear(t[x], weight) * t[s].to(dtype)
            return y if b is None else y + b
        if orientation == "@ t":
            return t[x] @ weight.t() if b is None else t[x] @ weight.t() + b
        if orientation == "addmm" and b is not None:
            return _rows(t[x], lambda rows: torch.addmm(b, rows, weight.t()))
        return F.linear(t[x], weight, b)

    return Module(function, inputs)
