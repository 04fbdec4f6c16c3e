"""Near misses: an anchor with the right neighbours that no rule matched. Reported, with the reason."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from ..matching import Match, Matcher, Mismatch, Rule
from ..matching.terms import OPERATORS
from ..report import Reason, Site
from .candidates import new_site, where

# How far from the anchor its neighbours may be.
REACH = 8


def near_misses(
    matcher: Matcher, rules: Sequence[Rule], matches: Sequence[Match]
) -> list[tuple[fx.Node, Site]]:
    """A rejected site for every anchor that is fed by a matmul, feeds one, and is in no match."""
    covered = {node for match in matches for node in match.computed}
    sites: list[tuple[fx.Node, Site]] = []
    for anchor_op in {rule.anchor for rule in rules if rule.anchor}:
        anchored = [rule for rule in rules if rule.anchor == anchor_op]
        for anchor in matcher.nodes_reading_as({anchor_op}):
            if anchor in covered or not _reaches(anchor, forward=False):
                continue
            consumer = _reaches(anchor, forward=True)
            if consumer is None:
                continue
            site = new_site(anchored[0].name, anchored[0].kind, anchor, {})
            site.status, site.code = "rejected", Reason.STRUCTURE
            site.detail = _explain(matcher, anchored, consumer, anchor)
            sites.append((anchor, site))
    return sites


def _reaches(anchor: fx.Node, *, forward: bool) -> fx.Node | None:
    """The nearest matmul before or after the anchor, through operators of one main operand."""
    frontier, seen = [anchor], {anchor}
    for _ in range(REACH):
        following: list[fx.Node] = []
        for node in frontier:
            for neighbour in node.users if forward else node.all_input_nodes:
                if neighbour in seen:
                    continue
                seen.add(neighbour)
                ops = OPERATORS.get(neighbour.target, ())
                if "matmul" in ops:
                    return neighbour
                if "linear" not in ops and neighbour.op == "call_function":
                    following.append(neighbour)
        frontier = following
    return None


def _explain(matcher: Matcher, rules: Sequence[Rule], consumer: fx.Node, anchor: fx.Node) -> str:
    deepest: Mismatch | None = None
    for rule in rules:
        for _ in matcher.match(rule.compiled, consumer):
            break
        found = matcher.deepest
        if found is not None and (deepest is None or found.depth > deepest.depth):
            deepest = found
    if deepest is None or deepest.found is None:
        return f"around {anchor.name}: not a known form"
    location, source = where(deepest.found)
    at = f" at {location}: {source}" if location else ""
    return f"expected {deepest.wanted}, found {deepest.found.name} ({deepest.found.target}){at}"
