"""What is known about a guard: proved, refuted or unknown, and why."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Verdict(enum.Enum):
    """Outcome of proving one guard."""

    PROVED = "proved"
    REFUTED = "refuted"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Judgement:
    """One guard of one site, judged.

    ``guard`` is the condition in words ("head_dim % 32 == 0"); ``evidence`` names what decided it
    ("static", "range", "divisibility", ...) or "" where nothing did; ``detail`` carries the numbers
    of a refutation ("head_dim = 80: 80 % 32 = 16"); ``residual`` is what remains to be checked at
    run time where the verdict is UNKNOWN ("s0 == 1").
    """

    guard: str
    verdict: Verdict
    evidence: str = ""
    detail: str = ""
    residual: str = ""
