"""Times of a model as it is, compiled by Inductor and rewritten, in turn; end to end and site by site."""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

import fxrewrite

from .. import capture
from ..errors import first_line
from ..report import Report, Site
from ..report.merge import key
from ..rewriting import Options
from ..rewriting.isolate import Isolated
from .float64 import InFloat64, widened
from .visit import visit_sites

EAGER, INDUCTOR, OURS = "eager", "inductor", "fxrewrite"


@dataclass
class Times:
    """Seconds of one side, a number a round."""

    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def least(self) -> float:
        return min(self.seconds)

    @property
    def spread(self) -> float:
        """The distance between the quartiles, as a part of the median."""
        low, high = self.quartiles
        return (high - low) / self.median

    @property
    def quartiles(self) -> tuple[float, float]:
        """The lower and the upper one."""
        if len(self.seconds) < 2:
            return self.median, self.median
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return low, high


@dataclass
class SiteTimes:
    """Times of one site, for all sites that are like it."""

    site: Site
    times: dict[str, Times]
    count: int = 1


@dataclass
class Benchmark:
    """What was measured.

    ``errors``: RMS of the difference to the model in float64, relative to the RMS of its output; empty
    where ``problem`` says why there is no such output. ``report`` is that of the rewritten model.
    """

    report: Report
    times: dict[str, Times] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    problem: str = ""
    sites: list[SiteTimes] = field(default_factory=list)


def bench(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    rounds: int = 10,
    inductor: bool = True,
    tell: Callable[[str], None] = lambda text: None,
) -> Benchmark:
    """Measure ``model`` on these inputs, ``rounds`` times a side, under no_grad. It is not changed.

    ``tell`` is called with what is being done. Raises CaptureError where nothing could be captured.
    """
    kwargs = dict(kwargs or {})
    with torch.no_grad():
        tell("rewriting")
        fast = fxrewrite.rewrite(model, args, kwargs)
        sides: dict[str, Callable[..., Any]] = {EAGER: model}
        if inductor:
            sides[INDUCTOR] = torch.compile(capture.with_own_code(model.forward), dynamic=False)
        sides[OURS] = fast
        outputs = {}
        for name, side in sides.items():
            tell(f"first call of {name}")
            outputs[name] = side(*args, **kwargs)
        done = Benchmark(cast(Any, fast.forward).report)
        tell("end to end")
        done.times = _interleaved(sides, args, kwargs, rounds)
        tell("float64")
        done.errors, done.problem = _errors(model, args, kwargs, outputs)
    tell("sites")
    done.sites = _sites(model, args, kwargs, rounds, inductor, tell)
    return done


def _interleaved(
    sides: Mapping[str, Callable[..., Any]], args: Sequence[Any], kwargs: Mapping[str, Any], rounds: int
) -> dict[str, Times]:
    """Every side once a round, so that a noisy machine hits all alike."""
    times = {name: Times() for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            started = time.perf_counter()
            side(*args, **kwargs)
            times[name].seconds.append(time.perf_counter() - started)
    return times


def _errors(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], outputs: Mapping[str, Any]
) -> tuple[dict[str, float], str]:
    """Each output's error, or why there is none."""
    try:
        precise = copy.deepcopy(model).double()
        wide_args, wide_kwargs = tree_map(widened, (tuple(args), dict(kwargs)))
        with InFloat64():  # type: ignore[no-untyped-call]
            exact = _tensors(precise(*wide_args, **wide_kwargs))
        size = _rms(exact)
        errors = {
            name: _rms([a.double() - b for a, b in zip(_tensors(out), exact, strict=True)])
            / max(size, 1e-300)
            for name, out in outputs.items()
        }
    except Exception as error:  # a model may have anything against float64
        return {}, f"{type(error).__name__}: {first_line(error)}"
    return errors, ""


def _tensors(output: Any) -> list[torch.Tensor]:
    return [
        leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    ]


def _rms(tensors: Sequence[torch.Tensor]) -> float:
    count = sum(tensor.numel() for tensor in tensors)
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors) / max(count, 1))


def _sites(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    rounds: int,
    inductor: bool,
    tell: Callable[[str], None],
) -> list[SiteTimes]:
    found: dict[object, SiteTimes] = {}

    def visit(isolated: Isolated, values: list[Any]) -> None:
        same = found.get(key(isolated.site))
        if same is not None:
            same.count += 1
            return
        tell(f"site {isolated.site.id}")
        sides: dict[str, Callable[..., Any]] = {EAGER: isolated.before}
        if inductor:
            sides[INDUCTOR] = torch.compile(isolated.before, dynamic=False)
        sides[OURS] = isolated.after
        for side in sides.values():
            side(*values)
        times = _interleaved(sides, values, {}, rounds)
        found[key(isolated.site)] = SiteTimes(isolated.site, times)

    visit_sites(model, args, kwargs, Options(), visit)
    return sorted(found.values(), key=lambda s: -s.count * s.times[EAGER].median)
