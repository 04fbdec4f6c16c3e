"""Requirements of cost: a kernel would be right, but not faster than what the framework does."""

from __future__ import annotations

from dataclasses import replace

from ..guards.verdict import Judgement, Verdict
from ..guards.vocabulary import Guard

MEASURED = "measured"


def measured(guard: Guard, detail: str) -> Guard:
    """``guard`` as a requirement of cost; ``detail`` says what is faster instead."""

    def judge() -> Judgement:
        judgement = guard.judge()
        if judgement.verdict is Verdict.PROVED:
            return judgement
        details = [judgement.detail] * bool(judgement.detail) + [detail]
        return replace(judgement, evidence=MEASURED, detail=": ".join(details))

    return Guard(judge, guard.ask)
