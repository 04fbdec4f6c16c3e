"""Is a rewritten model sound? One procedure for every model: build it anew for each run (some models change
their own state), compare eager, rewritten and float64 outputs, and look for side effects of the rewrite."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from . import contract, float64
from .contract import ContractError, Score
from .subject import silent_rejections, site_counts

SEED = 1234
POOL_SEEDS = (1, 2, 3, 4)  # when seed 0 exceeds the RMS bound, the errors of these are pooled with it

# Eager's relative RMS error to be expected of a small model. Above it float64 and eager did not compute the
# same thing (a rounded time step, routing by rounded values), and the reference is called weak.
EXPECTED_ERROR = {torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.15}

Make = Callable[[int], tuple[nn.Module, tuple, dict[str, Any]]]


def first_line(error: BaseException) -> str:
    """An error's type and the beginning of its message, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' | '.join(lines[:3])[:300]}"


def expected_error(model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> float:
    """The expected relative error of the coarsest dtype that the model computes in."""
    values = [*model.parameters(), *model.buffers(), *(v for _, v in contract.leaves((args, kwargs)))]
    return max(EXPECTED_ERROR.get(v.dtype, 1e-3) for v in values if isinstance(v, Tensor))


def run(function: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
    torch.manual_seed(SEED)
    with torch.no_grad():
        return function(*args, **kwargs)


def inputs(args: tuple, kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    """Copies of all input values with their paths."""
    return [
        (path, value.clone() if isinstance(value, Tensor) else value)
        for path, value in contract.leaves((args, kwargs), "input")
    ]


def state(model: nn.Module) -> dict[str, Any]:
    return {key: value.detach().clone() for key, value in model.state_dict().items()}


def same(a: Any, b: Any) -> bool:
    """Bit equality (NaN equals NaN) of two values."""
    if not isinstance(a, Tensor):
        return a is b or a == b
    if type(a) is not type(b) or a.shape != b.shape or a.dtype != b.dtype:
        return False
    if type(a) not in (Tensor, nn.Parameter):
        return True  # equality of a quantised subclass is not defined
    if a.dtype.itemsize == 1:
        return torch.equal(a.view(torch.uint8), b.view(torch.uint8))
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


class Soundness:
    """One model's result; ``stage`` says what was going on when something was raised."""

    def __init__(self, make: Make, subject: Callable[..., Any], *, own_dtypes: bool = False) -> None:
        self.make, self.subject = make, subject
        self.own_dtypes = own_dtypes  # the model itself changes its parameters' dtypes in every call
        self.stage = "build"
        self.clock: Counter[str] = Counter()
        self.reference = "good"
        self.report: Any = None
        self.scores: list[Score] = []
        self.one_seed_ratio: float | None = None
        self.seeds = 1

    @contextmanager
    def during(self, stage: str):
        self.stage, began = stage, time.perf_counter()
        try:
            yield
        finally:
            self.clock[stage] += time.perf_counter() - began

    def check(self) -> None:
        """Raise ContractError for a breach, or whatever building, running and rewriting raise."""
        self.scores = self._trial(0)
        if self.reference == "good" and not all(s.ok for s in self.scores):
            self.one_seed_ratio = self.ratio
            for seed in POOL_SEEDS:
                for mine, other in zip(self.scores, self._trial(seed), strict=True):
                    mine.add(other)
                self.seeds += 1
        self.stage = "compare"
        if self.reference == "good" and self.relative > self.limit:
            self.reference = "weak"
        if self.reference != "good":
            # two runs, each with the expected error, or with that which eager has where it is larger
            measured = not self.reference.startswith("none")
            for s in self.scores:
                expected = max(self.limit, s.eager_relative) if measured else self.limit
                if s.apart > 2 * expected:
                    raise ContractError(f"{s.where}: {s.apart:.3g} of its size away from eager")
        if not self.reference.startswith("none"):
            contract.require(self.scores)

    @property
    def ratio(self) -> float | None:
        """The largest RMS error against float64 over eager's own; None without a reference."""
        if self.reference.startswith("none") or not self.scores:
            return None
        return max(s.ratio for s in self.scores)

    @property
    def relative(self) -> float:
        """Eager's own relative error."""
        return max((s.eager_relative for s in self.scores), default=0.0)

    def _trial(self, seed: int) -> list[Score]:
        with self.during("build"):
            model, args, kwargs = self.make(seed)
        fresh = inputs(args, kwargs)
        self.limit = expected_error(model, args, kwargs)
        before_eager = state(model)
        with self.during("eager"):
            eager = run(model, args, kwargs)
        after_eager, eager_state = inputs(args, kwargs), state(model)
        with self.during("reference"):
            try:
                exact = float64.run_float64(*self.make(seed))
            except Exception as error:
                exact, self.reference = eager, f"none ({first_line(error)})"

        with self.during("build"):
            model, args, kwargs = self.make(seed)
        training = [module.training for module in model.modules()]
        with self.during("rewrite"), torch.no_grad():
            torch._dynamo.reset()
            new, report = self.subject(model, args, kwargs)
        for (path, was), (_, now) in zip(fresh, inputs(args, kwargs), strict=True):
            if not same(was, now):
                raise ContractError(f"{path} was changed by rewrite()")
        self._check_state("rewrite()", before_eager, state(model))
        with self.during("run"):
            ours = run(new, args, kwargs)
        self.stage = "compare"
        if report is not None:
            self.report = self.report or report
            silent = silent_rejections(report)
            if silent:
                raise ContractError(f"rejected without a reason: {silent[:3]}")
        self._check_state("the call", eager_state, state(model), before_eager)
        if training != [module.training for module in model.modules()]:
            raise ContractError("the model's training flags were changed")
        self._check_inputs(fresh, inputs(args, kwargs), after_eager)
        return contract.score(ours, eager, exact)

    def _check_state(self, what: str, want: dict, now: dict, changing_from: dict | None = None) -> None:
        if list(want) != list(now):
            raise ContractError(f"the model's state_dict keys were changed by {what}")
        if self.own_dtypes:
            return
        for key in want:
            eager_changes_it = changing_from is not None and not same(changing_from[key], want[key])
            if not eager_changes_it and not same(want[key], now[key]):
                raise ContractError(f"the model's {key} was changed by {what}")

    def _check_inputs(self, fresh: list, now: list, after_eager: list) -> None:
        """Inputs after the call: unchanged where eager leaves them alone, else of eager's shape and dtype."""
        if [path for path, _ in now] != [path for path, _ in after_eager]:
            raise ContractError("the inputs after the call have another structure than eager leaves")
        before = dict(fresh)
        for (path, mine), (_, theirs) in zip(now, after_eager, strict=True):
            if same(before.get(path), theirs):
                if not same(mine, theirs):
                    raise ContractError(f"{path} was changed by the call")
            elif isinstance(mine, Tensor) and (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
                raise ContractError(
                    f"{path} after the call: {mine.dtype}{tuple(mine.shape)}, "
                    f"eager leaves {theirs.dtype}{tuple(theirs.shape)}"
                )

    def sites(self) -> dict[str, dict[str, int]]:
        return site_counts(self.report)

    def reasons(self) -> dict[str, int]:
        rejected = (s for s in self.report.sites if s.status == "rejected")
        return dict(Counter(f"{s.kind}: {s.reason}" for s in rejected).most_common(12))
