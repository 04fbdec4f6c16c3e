"""Errors of each replaced site: the replacement and the original code, both against float64."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ..report import Report, Site
from ..rewriting import Options
from ..rewriting.isolate import Isolated
from .float64 import InFloat64, widened
from .visit import visit_sites

ALLOWED = 1.25
"""How large a replacement's RMS error may be, as a multiple of the original code's."""


@dataclass(frozen=True)
class Errors:
    """RMS errors of one call of a site, relative to the RMS of the exact result.

    ``original`` and ``ours`` are NaN where there is no float64 result, and ``problem`` says why;
    ``apart`` is the RMS difference between the two, in the same unit.
    """

    site: Site
    original: float
    ours: float
    apart: float
    rounding: float
    same_places: bool
    problem: str = ""

    @property
    def ratio(self) -> float:
        """Our error as a multiple of the original's, or of the rounding to the result's dtype if larger."""
        if not self.apart:
            return 1.0
        return self.ours / max(self.original, self.rounding, 1e-300)

    @property
    def holds(self) -> bool:
        """Is the error within what is allowed, with NaN and infinity at the same places?"""
        return self.same_places and not self.problem and self.ratio <= ALLOWED


@dataclass
class Verification:
    """The errors of all replaced sites, worst first, and the report of what was found."""

    report: Report
    errors: list[Errors] = field(default_factory=list)

    @property
    def failed(self) -> list[Errors]:
        """Those that do not hold."""
        return [error for error in self.errors if not error.holds]


def verify(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    options: Options | None = None,
) -> Verification:
    """Run ``model`` once, and each replacement on what its site gets there. The model is not changed.

    Raises CaptureError where nothing could be captured.
    """
    errors: list[Errors] = []
    report = visit_sites(
        model,
        args,
        kwargs or {},
        options or Options(),
        lambda site, values: errors.append(_errors(site, values)),
    )
    return Verification(report, sorted(errors, key=lambda e: (e.holds, -e.ratio)))


def _errors(isolated: Isolated, values: list[Any]) -> Errors:
    theirs, ours = isolated.before(*values), isolated.after(*values)
    dtype = theirs.dtype
    try:
        with InFloat64():  # type: ignore[no-untyped-call]
            exact = isolated.before(*map(widened, values))
    except Exception as error:  # whatever an operator has against float64
        problem = (
            f"no float64 result: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        )
        return Errors(isolated.site, math.nan, math.nan, _rms(ours - theirs), 0.0, True, problem)
    finite = exact.isfinite() & theirs.isfinite()
    same = bool(
        (ours.isnan() == theirs.isnan()).all()
        and (ours.isposinf() == theirs.isposinf()).all()
        and (ours.isneginf() == theirs.isneginf()).all()
    )
    exact, theirs, ours = (t[finite].double() for t in (exact, theirs, ours))
    size = max(_rms(exact), 1e-300)
    # of the spacing of two numbers of the dtype, rounding to nearest loses 1/sqrt(12) of it in RMS
    rounding = torch.finfo(dtype).eps / math.sqrt(12) / 2
    return Errors(
        isolated.site,
        _rms(theirs - exact) / size,
        _rms(ours - exact) / size,
        _rms(ours - theirs) / size,
        rounding,
        same,
    )


def _rms(tensor: torch.Tensor) -> float:
    return float(tensor.double().square().mean().sqrt()) if tensor.numel() else 0.0
