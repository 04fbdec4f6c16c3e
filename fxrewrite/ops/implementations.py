"""The implementations of each op, best first, each with what it requires. The list is the cost model.

The kernels check the same requirements again at run time: a list promises speed, never safety.
A requirement with evidence "measured" is one of cost: the kernel would be right, but not faster
than what the framework does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..guards.verdict import Judgement, Verdict
from ..guards.vocabulary import Guard, at_least, at_most, device_is, dtype_in, equal, holds
from .isa import active_isa

Arguments = Mapping[str, Any]
MEASURED = "measured"


@dataclass(frozen=True)
class Implementation:
    """A kernel of an op: its name as counted at run time, the ISA levels that have it, its needs."""

    name: str
    levels: tuple[str, ...]
    requires: Callable[[Arguments], Iterable[Guard]]

    def judge(self, arguments: Arguments) -> list[Judgement]:
        """All requirements judged for a call with these arguments (fake tensors and values)."""
        level = active_isa()
        available = holds(level in self.levels, f"ISA {' or '.join(self.levels)}", f"this machine's kernels: {level}")
        return [guard.judge() for guard in (available, *self.requires(arguments))]


def measured(guard: Guard, detail: str) -> Guard:
    """``guard`` as a requirement of cost; ``detail`` says what is faster instead."""

    def judge() -> Judgement:
        judgement = guard.judge()
        if judgement.verdict is not Verdict.REFUTED:
            return judgement
        return replace(judgement, evidence=MEASURED, detail=f"{judgement.detail}: {detail}")

    return Guard(judge)


def _rows(x: torch.Tensor) -> Any:
    rows: Any = 1
    for size in x.shape[:-1]:
        rows = rows * size
    return rows


def _linear(a: Arguments) -> Iterable[Guard]:
    x, weight = a["x"], a["weight"]
    yield device_is(x, "cpu", "x")
    yield dtype_in(x, [torch.bfloat16], "x")
    yield equal(x.dim() and x.stride(-1), 1, "x's last dim is contiguous")


def _sdpa(a: Arguments) -> Iterable[Guard]:
    query, value = a["query"], a["value"]
    yield device_is(query, "cpu", "query")
    yield dtype_in(query, [torch.bfloat16, torch.float32], "query")


def _fp8_linear(a: Arguments) -> Iterable[Guard]:
    x, scale = a["x"], a["scale"]
    yield device_is(x, "cpu", "x")
    yield dtype_in(x, [torch.bfloat16], "x")
    if scale is not None:
        yield equal(scale.numel(), 1, "elements of the scale == 1")


def _relu_linear_attention(a: Arguments) -> Iterable[Guard]:
    yield device_is(a["query"], "cpu", "query")


IMPLEMENTATIONS: dict[str, tuple[Implementation, ...]] = {
    "linear": (Implementation("avx512_bf16", ("avx512_bf16",), _linear),),
    "sdpa": (Implementation("avx512_bf16", ("avx512_bf16",), _sdpa),),
    "fp8_linear": (Implementation("avx512_bf16", ("avx512_bf16",), _fp8_linear),),
    "relu_linear_attention": (Implementation("avx512_bf16", ("avx512_bf16",), _relu_linear_attention),),
}

__all__ = ["IMPLEMENTATIONS", "MEASURED", "Implementation", "at_least", "at_most", "measured"]
