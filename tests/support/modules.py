"""Small models for tests: a registry of builders with counted sites, and non-degenerate parameters."""

from __future__ import annotations

import importlib.util
import math
import os
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .float64 import FP8

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")

Built = tuple[nn.Module, tuple, dict[str, Any]]


@dataclass(frozen=True)
class Sites:
    """Sites in a model, counted by hand from its configuration.

    ``fused`` calls of F.scaled_dot_product_attention, ``manual`` hand-written softmax attentions,
    ``linear`` calls of F.linear (the fp8 ones included), ``fp8`` products with an fp8 weight,
    ``linear_attention`` ReLU linear attentions. ``opaque`` names the operator of the framework in which
    Dynamo hides sites (they must still be reported, or the operator named in a note).
    """

    fused: int = 0
    manual: int = 0
    linear: int = 0
    fp8: int = 0
    linear_attention: int = 0
    opaque: str = ""


@dataclass(frozen=True)
class Model:
    """A named builder. ``quick`` models run in the unmarked part of the suite, the others in the slow one."""

    name: str
    build: Callable[[], Built]
    sites: Sites
    needs: str = ""
    quick: bool = False
    fill: bool = True
    note: str = field(default="", compare=False)

    def missing(self) -> str | None:
        """The package that this model needs and that is not installed."""
        return self.needs if self.needs and importlib.util.find_spec(self.needs) is None else None

    def make(self, seed: int = 0) -> Built:
        """(model, args, kwargs), the same for the same seed."""
        torch.manual_seed(seed)
        model, args, kwargs = self.build()
        if self.fill:
            fill_(model, seed)
        return model.eval(), args, kwargs


class Registry(dict[str, Model]):
    def add(self, name: str, *, needs: str = "", quick: bool = False, fill: bool = True, **sites: Any):
        """Decorator: register the builder below."""

        def register(build: Callable[[], Built]) -> Callable[[], Built]:
            if name in self:
                raise ValueError(f"two models are called {name}")
            self[name] = Model(name, build, Sites(**sites), needs, quick, fill)
            return build

        return register


@torch.no_grad()
def fill_(model: nn.Module, seed: int = 0) -> None:
    """Give each floating parameter values on which the output depends: library initialisations are often
    zeros, ones or identities, which hide errors. The values depend on the parameter's name and the seed."""
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point() or parameter.dtype in FP8:
            continue
        generator = torch.Generator().manual_seed(zlib.crc32(f"{name}/{seed}".encode()))
        values = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() >= 2:
            values *= 1.0 / math.sqrt(max(1, math.prod(parameter.shape[1:])))
        elif name.rsplit(".", 1)[-1] == "bias":
            values *= 0.1
        else:
            values = 1.0 + 0.15 * values
        parameter.copy_(values)


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Reproducible normal values, whatever was drawn before."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7000 + seed)).to(dtype)


def tokens(batch: int, length: int, vocabulary: int = 100, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(8000 + seed)
    return torch.randint(3, vocabulary, (batch, length), generator=generator)


class CallCounter(TorchFunctionMode):
    """Counts the calls of F.linear and F.scaled_dot_product_attention as the model writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = self.fused = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.linear += func is F.linear
        self.fused += func is F.scaled_dot_product_attention
        return func(*args, **(kwargs or {}))


def tensors(values: Iterable[Any]) -> list[Tensor]:
    return [v for v in values if isinstance(v, Tensor)]
