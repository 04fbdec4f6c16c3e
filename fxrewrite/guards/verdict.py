"""What is known about a guard: proved, refuted or unknown, and why."""

from __future__ import annotations

import enum
from dataclasses import dataclass

ASSUMPTION = "assumption"
"""Evidence of what an exported program was traced with and does not check when it runs."""

GUARD = "guard"
"""Evidence of what was unknown and is now a guard of the graph, which is compiled again where it fails."""


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
    of a refutation ("head_dim = 80: 80 % 32 = 16"); ``residual`` is what remains to be checked
    ("s0 == 1"): by the operator at run time where the verdict is UNKNOWN or its evidence "assumption",
    by Dynamo where its evidence is "guard".
    """

    guard: str
    verdict: Verdict
    evidence: str = ""
    detail: str = ""
    residual: str = ""

    @property
    def is_open(self) -> bool:
        """Is it neither refuted nor enforced, so that the operator checks it at run time?"""
        return self.verdict is Verdict.UNKNOWN or (
            self.verdict is Verdict.PROVED and self.evidence == ASSUMPTION
        )
