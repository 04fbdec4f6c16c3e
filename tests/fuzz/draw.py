"""Choices and tensors of the fuzzer: everything follows from a seed, and each choice is written down."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
BF16, F32, F16, F64 = torch.bfloat16, torch.float32, torch.float16, torch.float64
NAN, INF = float("nan"), float("inf")

Make = Callable[[torch.Generator, int], Tensor]


class Choices:
    """A seeded source of choices that keeps what it chose, for the message of a failure."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.made: list[str] = []

    def of(self, name: str, options: Sequence[T], weights: Sequence[float] | None = None) -> T:
        index = self._random.choices(range(len(options)), weights)[0]
        self.made.append(f"{name}={options[index]}")
        return options[index]

    def named(self, name: str, options: dict[str, T]) -> T:
        return options[self.of(name, list(options))]

    def chance(self, name: str, probability: float) -> bool:
        hit = self._random.random() < probability
        if hit:
            self.made.append(name)
        return hit

    def dtype(self) -> torch.dtype:
        return self.of("dtype", [BF16, F32, F16, F64], [6, 3, 1, 1])

    def size(self, name: str, small: bool = False) -> int:
        sizes = [0, 1, 2, 3, 5, 7, 8, 9, 16, 17] + ([] if small else [31, 32, 33, 48, 64, 65])
        return self.of(name, sizes, [0.3, 2] + [1] * (len(sizes) - 2))


LAYOUTS = ("plain", "transposed", "swapped", "gap", "offset", "expanded")


def laid_out(tensor: Tensor, layout: str, dim: int) -> Tensor:
    """The same values in other memory; "expanded" repeats what lies first in ``dim`` along it."""
    if layout == "transposed" and tensor.dim() >= 2:
        return tensor.mT.contiguous().mT
    if layout == "swapped" and tensor.dim() >= 3:
        return tensor.transpose(-3, -2).contiguous().transpose(-3, -2)
    if layout == "gap" and tensor.dim() >= 1:
        frame = tensor.new_full((*tensor.shape[:-1], 2 * tensor.shape[-1] + 1), NAN)
        view = frame[..., 1::2]
        return view.copy_(tensor)
    if layout == "offset":  # an address that is a multiple of the element's size only
        frame = tensor.new_full((tensor.numel() + 3,), NAN)
        return frame[1 : 1 + tensor.numel()].view(tensor.shape).copy_(tensor)
    if layout == "expanded" and tensor.dim() >= 1 and tensor.shape[dim]:
        return tensor.narrow(dim, 0, 1).expand(tensor.shape)
    return tensor


@dataclass
class Inputs:
    """The inputs of a module under construction: each is drawn anew for every seed of values, in
    sizes that may grow."""

    choices: Choices
    made: list[Make] = field(default_factory=list)
    growing: list[list[bool]] = field(default_factory=list)

    def add(self, shape: Sequence[Any], make: Make) -> int:
        """Another input of this shape: its index."""
        self.made.append(make)
        self.growing.append([isinstance(size, Growing) for size in shape])
        return len(self.made) - 1

    def normal(
        self,
        name: str,
        shape: Sequence[Any],
        dtype: torch.dtype,
        *,
        layouts: bool = True,
        factor: float = 1.0,
        finite: bool = False,
    ) -> int:
        """Normal values; some with a NaN, an infinity or far from one. A size may be a ``Growing``."""
        c = self.choices
        layout = c.of(f"{name} is", LAYOUTS, [6, 1, 1, 1, 1, 1]) if layouts else "plain"
        dim = c.of("dim", range(len(shape))) if layout == "expanded" and shape else 0
        odd = 0 if finite else 1
        special = c.of(f"{name} has", ["", "nan", "inf", "large", "zeros"], [20, odd, odd, 1, 1])
        if c.chance("wide", 0.05) and dtype in (BF16, F32):
            factor *= 30

        def make(generator: torch.Generator, grown: int) -> Tensor:
            values = torch.randn(*sizes(shape, grown), generator=generator, dtype=F64) * factor
            if special in ("nan", "inf", "large") and values.numel():
                place = int(torch.randint(values.numel(), (), generator=generator))
                values.view(-1)[place] = {"nan": NAN, "inf": INF, "large": 3e4}[special]
            elif special == "zeros":
                values.zero_()
            return laid_out(values.to(dtype), layout, dim)

        return self.add(shape, make)

    def draw(self, seed: int, grown: int = 0) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return [make(generator, grown) for make in self.made]


@dataclass(frozen=True)
class Growing:
    """A size that is another one when the sizes of a module grow; 0 and 1 stay what they are."""

    size: int

    def __str__(self) -> str:
        return f"{self.size}+"


def sizes(shape: Sequence[Any], grown: int) -> list[int]:
    return [s.size + grown * (s.size > 1) if isinstance(s, Growing) else s for s in shape]


@dataclass
class Module:
    """A random module: a function of tensors and how to draw them."""

    function: Callable[..., Any]
    inputs: Inputs

    @property
    def told(self) -> str:
        return ", ".join(self.inputs.choices.made)
