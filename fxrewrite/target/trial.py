"""Which inputs a model takes: each is tried, without computing anything.

On the meta device first. A model that asks what device a tensor is on, or enters autocast, is then tried
on fake tensors that say "cpu", which is how the analysis runs it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from ..streams import quiet_logs
from .once import blocks_run_once
from .telling import describe

Inputs = dict[str, Any]

# A model that asks for a value says nothing against the shapes that it was given.
_NEEDS_VALUES = (
    *("cannot be called on meta tensors", "out of meta tensor", "raises unimplemented by default"),
    *("DataDependentOutputException", "DynamicOutputShapeException"),
)
_MENDED = 4
"""How many widths are mended before a candidate is given up."""


@dataclass
class Refusal:
    """Why no candidate was taken: what the one that got furthest ran into.

    ``plausible`` is the one that got furthest of those that were asked for a value, if there are any.
    """

    problem: str = ""
    plausible: Inputs | None = None


def first_taken(
    model: torch.nn.Module, candidates: Iterable[Inputs], fixed: frozenset[str]
) -> Inputs | Refusal:
    """The first of ``candidates``, of tensors on the meta device, that ``model`` runs on.

    Where a layer refuses the width of an input that is not ``fixed``, the input is given the width that
    the layer asks for.
    """
    tried = list(candidates)
    refusal, furthest, furthest_asked = Refusal(), -1, -1
    for way in (_as_they_are, _mended_on_meta, _mended_on_fakes):
        for inputs, outcome in way(model, tried, fixed):
            error = outcome.error
            if error is None:
                return inputs
            asked = any(text in f"{type(error).__name__}: {error}" for text in _NEEDS_VALUES)
            if asked and outcome.calls > furthest_asked:
                furthest_asked, refusal.plausible = outcome.calls, inputs
            if outcome.calls > furthest:
                furthest, refusal.problem = outcome.calls, describe(error, inspect.getfile(type(model)))
        if refusal.plausible is not None:
            break
    return refusal


@dataclass(frozen=True)
class _Width:
    """A width that a layer refused: in which dimension of an input it may lie, and what it should be."""

    dims: tuple[int, ...]
    was: int
    wanted: int


@dataclass(frozen=True)
class _Outcome:
    error: Exception | None
    calls: int
    width: _Width | None


Way = Iterator[tuple[Inputs, _Outcome]]


def _as_they_are(model: torch.nn.Module, candidates: list[Inputs], fixed: frozenset[str]) -> Way:
    for candidate in candidates:
        yield candidate, _run_on_meta(model, candidate)


def _mended_on_meta(model: torch.nn.Module, candidates: list[Inputs], fixed: frozenset[str]) -> Way:
    for candidate in candidates:
        yield _mending(candidate, fixed, lambda inputs: _run_on_meta(model, inputs))


def _mended_on_fakes(model: torch.nn.Module, candidates: list[Inputs], fixed: frozenset[str]) -> Way:
    from ..capture import fake_call

    call = fake_call(model, (), {})

    def fake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        with call.mode:
            return torch.empty(value.shape, dtype=value.dtype)

    for candidate in candidates:
        yield _mending(candidate, fixed, lambda inputs: _run(call.model, tree_map(fake, inputs), call.mode))


def _mending(
    inputs: Inputs, fixed: frozenset[str], run: Callable[[Inputs], _Outcome]
) -> tuple[Inputs, _Outcome]:
    for _ in range(_MENDED):
        outcome = run(inputs)
        mended = outcome.width and _mended(inputs, fixed, outcome.width)
        if not mended:
            break
        inputs = mended
    return inputs, outcome


def _run_on_meta(model: torch.nn.Module, inputs: Inputs) -> _Outcome:
    with blocks_run_once(model):
        return _run(model, inputs, torch.device("meta"))


def _run(model: torch.nn.Module, inputs: Inputs, surroundings: AbstractContextManager[Any]) -> _Outcome:
    watch = _Watch()
    error = None
    with surroundings, torch.no_grad(), quiet_logs(), watch:
        try:
            model(**inputs)
        except Exception as raised:
            error = raised
    return _Outcome(error, watch.calls, watch.width)


class _Watch(TorchFunctionMode):
    """Counts calls, and tells which width a layer refused."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.width: _Width | None = None

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.calls += 1
        try:
            return function(*args, **(kwargs or {}))
        except Exception:
            self.width = _refused(function, args)
            raise


_CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)
_CHANNELS = 1
"""The dimension of channels, in what convolutions take."""


def _refused(function: Any, args: tuple[Any, ...]) -> _Width | None:
    if len(args) < 2 or not all(isinstance(value, torch.Tensor) for value in args[:2]):
        return None
    x, weight = args[:2]
    if function is torch.nn.functional.linear and x.dim() and x.shape[-1] != weight.shape[1]:
        return _Width((-1, _CHANNELS), x.shape[-1], weight.shape[1])
    if function in _CONVOLUTIONS and x.dim() == weight.dim():
        channels = weight.shape[1] * (args[6] if len(args) > 6 else 1)
        return _Width((_CHANNELS,), x.shape[1], channels) if x.shape[1] != channels else None
    return None


def _mended(inputs: Inputs, fixed: frozenset[str], width: _Width) -> Inputs | None:
    """``inputs`` with the first that has the refused width, or channels that became it, given another."""
    tensors = {
        name: value
        for name, value in inputs.items()
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() > 1
    }
    for dim in width.dims:
        for name, value in tensors.items():
            if name not in fixed and value.shape[dim] == width.was:
                return {**inputs, name: _resized(value, dim, width.wanted)}
    for name, value in tensors.items():  # each channel became as many as a patch has places
        channels, rest = divmod(value.shape[_CHANNELS] * width.wanted, width.was)
        if name not in fixed and channels and not rest and width.was % value.shape[_CHANNELS] == 0:
            return {**inputs, name: _resized(value, _CHANNELS, channels)}
    return None


def _resized(value: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    sizes = list(value.shape)
    sizes[dim] = size
    return value.new_empty(sizes)
