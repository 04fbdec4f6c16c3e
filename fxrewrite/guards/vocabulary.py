"""The vocabulary of guards, in which rules and implementations state what they need.

A guard is a condition with a name; ``judge`` gives its verdict. Rules and implementation lists
*yield* guards and never test a size themselves, so that every condition reaches the report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from .. import capture
from . import prover
from .verdict import ASSUMPTION, GUARD, Judgement, Verdict


class TensorLike(Protocol):
    """What guards look at: a tensor, or a view of a node that stands for one."""

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...


@dataclass(frozen=True)
class Guard:
    """A condition to be judged.

    ``ask`` evaluates the condition with the sizes at hand, as a program's own ``if`` would: outside of a
    region that suppresses guards it makes the graph valid for sizes of the same answer only. None where
    there is nothing to ask.
    """

    judge: Callable[[], Judgement]
    ask: Callable[[], bool] | None = None

    def settle(self) -> Judgement:
        """The judgement; what is UNKNOWN is asked, and then holds, or not, by a guard of the graph."""
        judgement = self.judge()
        if judgement.verdict is not Verdict.UNKNOWN or self.ask is None:
            return judgement
        holds = capture.evaluated(self.ask)
        if holds is None:  # a size that only the run knows
            return judgement
        if holds:
            return replace(judgement, verdict=Verdict.PROVED, evidence=GUARD, detail="")
        details = [f"not with these sizes: {judgement.residual}"] + [judgement.detail] * bool(
            judgement.detail
        )
        evidence = judgement.evidence or GUARD
        return replace(judgement, verdict=Verdict.REFUTED, evidence=evidence, detail=": ".join(details))


def divisible(value: int | torch.SymInt, divisor: int, name: str) -> Guard:
    """``value``, called ``name`` in reports, is a multiple of ``divisor``."""
    return Guard(lambda: prover.prove_divisible(value, divisor, name), lambda: bool(value % divisor == 0))


def equal(left: int | torch.SymInt, right: int | torch.SymInt, name: str) -> Guard:
    """``left == right``; ``name`` is the condition in words ("batch == 1")."""
    return Guard(lambda: prover.prove_equal(left, right, name), lambda: bool(left == right))


def at_most(value: int | torch.SymInt, bound: int, name: str) -> Guard:
    """``value <= bound``."""
    return Guard(lambda: prover.prove_at_most(value, bound, name), lambda: bool(value <= bound))


def at_least(value: int | torch.SymInt, bound: int, name: str) -> Guard:
    """``value >= bound``."""
    return Guard(lambda: prover.prove_at_least(value, bound, name), lambda: bool(value >= bound))


def same_shape(left: Sequence[Any], right: Sequence[Any], name: str) -> Guard:
    """Two lists of sizes are equal, dim by dim."""

    def judge() -> Judgement:
        if len(left) != len(right):
            return prover.decide(False, name, f"{name}: rank {len(left)} against {len(right)}")
        judgements = [prover.prove_equal(a, b, name) for a, b in zip(left, right, strict=True)]
        return conjunction(judgements, name)

    return Guard(judge, lambda: all(bool(a == b) for a, b in zip(left, right, strict=True)))


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


def judged(guards: Iterable[Guard], on_unknown: str) -> tuple[Judgement, ...]:
    """The guards' judgements. With ``on_unknown`` "guard", where none is refuted, those that are unknown
    are settled in turn, until one does not hold.
    """
    guards = list(guards)
    judgements = [guard.judge() for guard in guards]
    if on_unknown == "guard":
        for index, guard in enumerate(guards):
            if any(j.verdict is Verdict.REFUTED for j in judgements):
                break
            if judgements[index].verdict is Verdict.UNKNOWN:
                judgements[index] = guard.settle()
    return tuple(judgements)


def blocking(judgements: Sequence[Judgement], on_unknown: str) -> Judgement | None:
    """The judgement that rules a site, or an implementation, out: refuted, or open under "reject"."""
    broken = next((j for j in judgements if j.verdict is Verdict.REFUTED), None)
    if broken is None and on_unknown == "reject":
        return next((j for j in judgements if j.is_open), None)
    return broken


def conjunction(judgements: Sequence[Judgement], name: str) -> Judgement:
    """One judgement for "all of these hold"."""
    for judgement in judgements:
        if judgement.verdict is Verdict.REFUTED:
            return Judgement(name, Verdict.REFUTED, judgement.evidence, judgement.detail)
    residual = " and ".join(dict.fromkeys(j.residual for j in judgements if j.residual))
    if any(j.verdict is Verdict.UNKNOWN for j in judgements):
        return Judgement(name, Verdict.UNKNOWN, residual=residual)
    if any(j.evidence == ASSUMPTION for j in judgements):
        return Judgement(name, Verdict.PROVED, ASSUMPTION, residual=residual)
    evidence = ", ".join(dict.fromkeys(j.evidence for j in judgements))
    return Judgement(name, Verdict.PROVED, evidence or "static")


def short(dtype: torch.dtype) -> str:
    """``torch.bfloat16`` as "bfloat16"."""
    return str(dtype).removeprefix("torch.")
