"""The contract: what a rewritten model's output may differ in from eager's, measured against float64.

* the same structure, types, shapes, dtypes and devices; non-floating values equal;
* NaN, +inf and -inf in the same places;
* RMS error against float64 at most ``RATIO`` times eager's own;
* no drift in the mean: the mean error is not larger than eager's own beyond what chance gives;
* no bad row: the worst row (along the last dimension) is not far worse than eager's worst row.

Bit-equal output always passes. The error of a correctly rounded result is not zero: where eager is
(nearly) exact, the half-ulp of the output's dtype, at the reference's values, is allowed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

RATIO = 1.25
ROW_RATIO = 4.0
DRIFT_SIGMAS = 5.0


class ContractError(AssertionError):
    """A rewritten output breaks the contract; the message has the place and the numbers."""


@dataclasses.dataclass
class Score:
    """Errors of one tensor against float64, as sums, so that several runs can be pooled."""

    where: str
    count: int = 0
    square_ours: float = 0.0
    square_eager: float = 0.0
    square_floor: float = 0.0
    square_reference: float = 0.0
    square_apart: float = 0.0
    bit_equal: bool = True

    @property
    def ours(self) -> float:
        return math.sqrt(self.square_ours / self.count) if self.count else 0.0

    @property
    def eager(self) -> float:
        return math.sqrt(self.square_eager / self.count) if self.count else 0.0

    @property
    def floor(self) -> float:
        return math.sqrt(self.square_floor / self.count) if self.count else 0.0

    @property
    def size(self) -> float:
        return math.sqrt(self.square_reference / self.count) if self.count else 0.0

    @property
    def apart(self) -> float:
        """RMS difference from eager itself, over the size of the values."""
        return math.sqrt(self.square_apart / max(self.square_reference, 1e-300))

    @property
    def eager_relative(self) -> float:
        """Eager's own error over the size of the values."""
        return self.eager / max(self.size, 1e-300)

    @property
    def allowed(self) -> float:
        return max(RATIO * self.eager, self.floor)

    @property
    def ratio(self) -> float:
        """Our error over the larger of eager's error and the allowed floor's share of it."""
        if self.bit_equal:
            return 1.0
        return self.ours / max(self.eager, self.floor / RATIO, 1e-300)

    @property
    def ok(self) -> bool:
        return self.bit_equal or self.ours <= self.allowed

    def add(self, other: Score) -> None:
        """Pool another run of the same tensor into this one."""
        self.count += other.count
        self.square_ours += other.square_ours
        self.square_eager += other.square_eager
        self.square_floor += other.square_floor
        self.square_reference += other.square_reference
        self.square_apart += other.square_apart
        self.bit_equal &= other.bit_equal


def leaves(value: Any, path: str = "output") -> Iterator[tuple[str, Any]]:
    """(path, leaf) of every tensor and plain value in an output of any structure."""
    if isinstance(value, Tensor) or value is None or isinstance(value, (bool, int, float, str, torch.dtype)):
        yield path, value
    elif isinstance(value, Mapping):
        for key in value:
            yield from leaves(value[key], f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from leaves(item, f"{path}[{i}]")
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name), f"{path}.{field.name}")
    elif isinstance(getattr(value, "layers", None), list):  # a cache of keys and values
        for i, layer in enumerate(value.layers):
            for name in ("keys", "values"):
                yield from leaves(getattr(layer, name, None), f"{path}.layers[{i}].{name}")
    elif hasattr(value, "__dict__"):
        for name in sorted(vars(value)):
            item = vars(value)[name]
            if isinstance(item, (Tensor, Mapping, list, tuple)):
                yield from leaves(item, f"{path}.{name}")
    else:
        yield path, value


def half_ulp(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Half the spacing of ``dtype``'s numbers at each of ``value`` (float64)."""
    info = torch.finfo(dtype)
    magnitude = value.abs().clamp(min=info.smallest_normal)
    return torch.exp2(torch.floor(torch.log2(magnitude))) * (info.eps / 2)


def _mean_error(error: Tensor) -> tuple[float, float]:
    """Mean of an error and its standard error. Errors of one row or one column go together (they share
    an input row or a weight row), so the means of rows and of columns are what is independent."""
    mean = error.mean().item()
    table = error.reshape(-1, error.shape[-1]) if error.dim() > 1 else error.reshape(1, -1)
    spread = [error.std(unbiased=False).item() / math.sqrt(error.numel())]
    for dim in (0, 1):
        means = table.mean(dim)
        if means.numel() > 1:
            spread.append(means.std(unbiased=True).item() / math.sqrt(means.numel()))
    return mean, math.sqrt(sum(s * s for s in spread))


def _fail(where: str, what: str) -> None:
    raise ContractError(f"{where}: {what}")


def score_tensor(where: str, ours: Tensor, eager: Tensor, reference: Tensor) -> Score:
    """Check all but the RMS bound for one floating tensor, and return its score. Where ``reference`` is
    ``eager`` itself there is no oracle: only the score is made."""
    score = Score(where)
    no_oracle = reference is eager
    if eager.is_complex():
        ours, eager, reference = (torch.view_as_real(t.resolve_conj()) for t in (ours, eager, reference))
    dtype = eager.dtype
    o, e, r = (t.detach().to("cpu", torch.float64) for t in (ours, eager, reference))
    for label, test in (("NaN", torch.isnan), ("+inf", torch.isposinf), ("-inf", torch.isneginf)):
        mine, theirs = test(o), test(e)
        if not torch.equal(mine, theirs):
            _fail(where, f"{int(mine.sum())} {label}, eager has {int(theirs.sum())}; "
                         f"{int((mine ^ theirs).sum())} of {mine.numel()} places differ")  # fmt: skip
    score.bit_equal = bool(torch.equal(torch.nan_to_num(o), torch.nan_to_num(e)))
    valid = torch.isfinite(e) & torch.isfinite(r)
    score.count = int(valid.sum())
    if not score.count:
        return score
    zero = torch.zeros((), dtype=torch.float64)
    o, e, r = (torch.where(valid, t, zero) for t in (o, e, r))
    floor = torch.where(valid, half_ulp(r, dtype), zero)
    error_ours, error_eager = o - r, e - r
    score.square_ours = error_ours.square().sum().item()
    score.square_eager = error_eager.square().sum().item()
    score.square_floor = floor.square().sum().item()
    score.square_reference = r.square().sum().item()
    score.square_apart = (o - e).square().sum().item()
    if score.bit_equal or no_oracle:
        return score
    if o.dim() > 1 and o.shape[-1] > 1:
        rows_ours, rows_eager, rows_floor = (
            t.square().mean(-1).sqrt() for t in (error_ours, error_eager, floor)
        )  # fmt: skip
        limit = max(ROW_RATIO * rows_eager.max().item(), ROW_RATIO * rows_floor.max().item())
        worst = rows_ours.max().item()
        if worst > limit:
            row = int(rows_ours.argmax())
            place = f"row {row} of {rows_ours.numel()}"
            _fail(
                where,
                f"worst row ({place}): RMS error {worst:.3g} > {limit:.3g} = {ROW_RATIO:g} x eager's worst",
            )
    mean_ours, sigma_ours = _mean_error(error_ours)
    mean_eager, sigma_eager = _mean_error(error_eager)
    chance = DRIFT_SIGMAS * math.hypot(sigma_ours, sigma_eager)
    limit = max(RATIO * abs(mean_eager) + chance, floor.mean().item())
    if abs(mean_ours) > limit:
        _fail(where, f"drift in the mean: {mean_ours:+.3g}, eager {mean_eager:+.3g}, allowed {limit:.3g} "
                     f"(of which chance {chance:.3g})")  # fmt: skip
    return score


def score(ours: Any, eager: Any, reference: Any) -> list[Score]:
    """Scores of all floating tensors of an output; raises ContractError for anything but the RMS bound."""
    mine, theirs, exact = (list(leaves(value)) for value in (ours, eager, reference))
    if [p for p, _ in mine] != [p for p, _ in theirs]:
        _fail("output", f"structure {[p for p, _ in mine]}, eager has {[p for p, _ in theirs]}")
    if type(ours) is not type(eager):
        _fail("output", f"{type(ours).__name__}, eager has {type(eager).__name__}")
    if len(exact) != len(theirs):
        _fail("output", f"reference has {len(exact)} values, eager {len(theirs)}")
    scores = []
    for (where, o), (_, e), (_, r) in zip(mine, theirs, exact, strict=True):
        if not isinstance(e, Tensor):
            if isinstance(o, Tensor) or (o != e and not (o != o and e != e)):
                _fail(where, f"{o!r}, eager has {e!r}")
            continue
        if not isinstance(o, Tensor):
            _fail(where, f"{type(o).__name__}, eager has a tensor")
        for attribute in ("shape", "dtype", "device", "layout"):
            if getattr(o, attribute) != getattr(e, attribute):
                _fail(where, f"{attribute} {getattr(o, attribute)}, eager has {getattr(e, attribute)}")
        if not (e.is_floating_point() or e.is_complex()):
            if not torch.equal(o, e):
                _fail(where, f"{int((o != e).sum())} of {e.numel()} {e.dtype} values differ")
            continue
        if r.shape != e.shape:
            _fail(where, f"reference has shape {tuple(r.shape)}, eager {tuple(e.shape)}")
        scores.append(score_tensor(where, o, e, r))
    return scores


def require(scores: list[Score]) -> None:
    """Raise unless every score is within the RMS bound."""
    for s in scores:
        if not s.ok:
            facts = f"eager {s.eager:.3g}, rounding floor {s.floor:.3g}, values of size {s.size:.3g}"
            _fail(s.where, f"RMS error {s.ours:.3g} > {s.allowed:.3g} allowed, ratio {s.ratio:.2f} ({facts})")


def check(ours: Any, eager: Any, reference: Any) -> list[Score]:
    """The whole contract; raises ContractError with the first breach, else returns the scores."""
    scores = score(ours, eager, reference)
    require(scores)
    return scores
