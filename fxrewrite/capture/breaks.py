"""What Dynamo leaves to Python."""

from __future__ import annotations

import re
from collections import Counter

import torch
import torch._dynamo
import torch._guards


class GraphBreaks:
    """The graph breaks that Dynamo reports from the creation of this object on, and the functions that it
    leaves to Python as a whole: those with a break inside of a loop, say.
    """

    def __init__(self) -> None:
        self._before = self._now()

    def take(self, *, captured: bool) -> list[str]:
        """The reasons since the last call, a line each.

        Where there is no other, and nothing was ``captured``, what Dynamo met that it cannot trace is the
        reason; in what it captured it has found a way around that.
        """
        now = self._now()
        new, self._before = now - self._before, now
        told = {key: n for key, n in new.items() if key[0] != _UNTRACED} or ({} if captured else new)
        return [f"{what}, {n} times: {_first_words(reason)}" for (what, reason), n in sorted(told.items())]

    def forget(self) -> None:
        """Leave out what was reported since the last call."""
        self._before = self._now()

    @staticmethod
    def _now() -> Counter[tuple[str, str]]:
        counters = torch._dynamo.utils.counters
        found = Counter({("graph break", reason): n for reason, n in counters["graph_break"].items()})
        for reason, count in counters["unimplemented"].items():
            skipped = _SKIPPED.search(reason)
            found[f"{skipped[1]} runs as it is" if skipped else _UNTRACED, reason] += count
        return found


_UNTRACED = "not captured"
_SKIPPED = re.compile(r"frame skipped: (\w+)")


def _first_words(reason: str) -> str:
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    return " ".join(lines[:2]) if lines else reason
