"""``FXREWRITE_TRACE``: how far each rule got, anchor by anchor, on stderr.

"1" traces every rule, "WrittenAttention" one, "WrittenAttention,matmul_3" one at one node of the graph.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from torch import fx

from ..guards.verdict import Judgement
from ..matching import Match, Mismatch, Rule
from ..report.words import short_location
from .candidates import found_at, refuted, where


class Trace:
    """What the environment asks to be traced, for one run of the pass."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rule, _, self._node = os.environ.get("FXREWRITE_TRACE", "").partition(",")
        names = [rule.name for rule in rules]
        if self._rule not in ("", "0", "1", *names):
            _say(f"no rule {self._rule!r}: expected 1 (all) or one of {', '.join(names)}")

    def wants(self, rule: Rule, root: fx.Node) -> bool:
        """Is the attempt of ``rule`` at ``root`` to be traced?"""
        if self._rule in ("", "0"):
            return False
        return self._rule in ("1", rule.name) and self._node in ("", root.name)

    def tell(
        self,
        rule: Rule,
        root: fx.Node,
        found: tuple[Match, tuple[Judgement, ...]] | None,
        deepest: Mismatch | None,
    ) -> None:
        """Print the outcome: a match, the guard that it broke, or the deepest mismatch."""
        place, source = where(root)
        at = f"{rule.name} at {root.name}" + (f" ({short_location(place)}: {source})" if place else "")
        if found is not None:
            broken = refuted(found[1])
            outcome = f"guard refuted: {broken.detail or broken.guard}" if broken else "matched"
            _say(f"{at}: {outcome}; {len(found[0].computed)} operators replaced")
        elif deepest is None or deepest.found is None:
            _say(f"{at}: no match")
        else:
            _say(
                f"{at}: {deepest.depth} operators in, expected {deepest.wanted}, "
                f"found {found_at(deepest.found)}"
            )


def _say(text: str) -> None:
    print(f"fxrewrite trace: {text}", file=sys.stderr)
