"""The vocabulary of guards, in which rules and implementations state what they need.

A guard is a condition with a name; ``judge`` gives its verdict. Rules and implementation lists
*yield* guards and never test a size themselves, so that every condition reaches the report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from . import prover
from .verdict import Judgement, Verdict


class TensorLike(Protocol):
    """What guards look at: a tensor, or a view of a node that stands for one."""

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...


@dataclass(frozen=True)
class Guard:
    """A condition to be judged."""

    judge: Callable[[], Judgement]


def divisible(value: int | torch.SymInt, divisor: int, name: str) -> Guard:
    """``value``, called ``name`` in reports, is a multiple of ``divisor``."""
    return Guard(lambda: prover.prove_divisible(value, divisor, name))


def equal(left: int | torch.SymInt, right: int | torch.SymInt, name: str) -> Guard:
    """``left == right``; ``name`` is the condition in words ("batch == 1")."""
    return Guard(lambda: prover.prove_equal(left, right, name))


def at_most(value: int | torch.SymInt, bound: int, name: str) -> Guard:
    """``value <= bound``."""
    return Guard(lambda: prover.prove_at_most(value, bound, name))


def at_least(value: int | torch.SymInt, bound: int, name: str) -> Guard:
    """``value >= bound``."""
    return Guard(lambda: prover.prove_at_least(value, bound, name))


def same_shape(left: Sequence[Any], right: Sequence[Any], name: str) -> Guard:
    """Two lists of sizes are equal, dim by dim."""

    def judge() -> Judgement:
        if len(left) != len(right):
            return prover.decide(False, name, f"{name}: rank {len(left)} against {len(right)}")
        judgements = [prover.prove_equal(a, b, name) for a, b in zip(left, right, strict=True)]
        return conjunction(judgements, name)

    return Guard(judge)


def dtype_in(tensor: TensorLike, allowed: Iterable[torch.dtype], name: str) -> Guard:
    """``tensor``, called ``name``, has one of the ``allowed`` dtypes."""
    names = [short(dtype) for dtype in allowed]
    found = short(tensor.dtype)
    guard = f"{name} is {' or '.join(names)}"
    return Guard(
        lambda: prover.decide(found in names, guard, f"{name} is {found}, needed: {' or '.join(names)}")
    )


def same_dtype(tensors: Mapping[str, TensorLike]) -> Guard:
    """All tensors, by name, have one dtype."""
    found = {name: short(t.dtype) for name, t in tensors.items()}
    guard = f"{', '.join(found)} of one dtype"
    detail = "mixed dtypes: " + ", ".join(f"{name} {dtype}" for name, dtype in found.items())
    return Guard(lambda: prover.decide(len(set(found.values())) == 1, guard, detail))


def device_is(tensor: TensorLike, device: str, name: str) -> Guard:
    """``tensor`` is on a device of type ``device`` ("cpu", "cuda")."""
    found = tensor.device.type
    return Guard(lambda: prover.decide(found == device, f"{name} on {device}", f"{name} is on {found}"))


def holds(condition: bool, guard: str, detail: str) -> Guard:
    """A plain fact; ``detail`` says what is wrong where it does not hold."""
    return Guard(lambda: prover.decide(condition, guard, detail))


def conjunction(judgements: Sequence[Judgement], name: str) -> Judgement:
    """One judgement for "all of these hold"."""
    for judgement in judgements:
        if judgement.verdict is Verdict.REFUTED:
            return Judgement(name, Verdict.REFUTED, judgement.evidence, judgement.detail)
    residual = [j.residual for j in judgements if j.verdict is Verdict.UNKNOWN]
    if residual:
        return Judgement(name, Verdict.UNKNOWN, residual=" and ".join(dict.fromkeys(residual)))
    evidence = ", ".join(dict.fromkeys(j.evidence for j in judgements))
    return Judgement(name, Verdict.PROVED, evidence or "static")


def short(dtype: torch.dtype) -> str:
    """``torch.bfloat16`` as "bfloat16"."""
    return str(dtype).removeprefix("torch.")
