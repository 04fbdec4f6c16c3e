"""Near misses: an anchor with the right neighbours that no rule matched. Reported, with the reason."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import fx

from ..matching import Match, Matcher, Mismatch, Rule
from ..matching.terms import operators_of, readings
from ..matching.value import plain
from ..report import Reason, Site
from .candidates import found_at, new_site

# How far from the anchor its neighbours may be.
REACH = 8


def near_misses(
    matcher: Matcher, rules: Sequence[Rule], matches: Sequence[tuple[Rule, Match]]
) -> list[tuple[fx.Node, Site]]:
    """A rejected site for every anchor with the neighbours that its rule names that is in no match.

    An anchor that a match of the same kind takes as an operand is none either.
    """
    covered = {node for _, match in matches for node in match.computed}
    operands = {(rule.kind, view.node) for rule, match in matches for view in match.operands.values()}
    sites: list[tuple[fx.Node, Site]] = []
    reported: set[tuple[str | None, fx.Node]] = set()  # one site, though it has more than one anchor
    for rule in rules:
        for anchor in matcher.nodes_reading_as({rule.anchor}) if rule.anchor else []:
            reads_so = any(term.op == rule.anchor for term in readings(plain(anchor)))
            if anchor in covered or (rule.kind, anchor) in operands:
                continue
            if not reads_so or not rule.is_anchor(anchor):
                continue
            if rule.fed_by and _nearest(anchor, rule.fed_by, forward=False) is None:
                continue
            consumer = _nearest(anchor, rule.feeds, forward=True)
            if consumer is None or (rule.anchor, consumer) in reported:
                continue
            covered.add(anchor)
            reported.add((rule.anchor, consumer))
            site = new_site(rule.name, rule.kind, anchor, {})
            site.status, site.code = "rejected", Reason.STRUCTURE
            site.detail = _explain(matcher, [r for r in rules if r.anchor == rule.anchor], consumer, anchor)
            sites.append((anchor, site))
    return sites


def _nearest(anchor: fx.Node, wanted: Collection[str], *, forward: bool) -> fx.Node | None:
    """The nearest node that reads as one of ``wanted``, after or before the anchor."""
    frontier, seen = [anchor], {anchor}
    for _ in range(REACH):
        following: list[fx.Node] = []
        for node in frontier:
            for neighbour in node.users if forward else node.all_input_nodes:
                if neighbour in seen:
                    continue
                seen.add(neighbour)
                ops = operators_of(neighbour.target)
                if not set(ops).isdisjoint(wanted):
                    return neighbour
                if "linear" not in ops and _hands_on(neighbour):
                    following.append(neighbour)
        frontier = following
    return None


def _hands_on(node: fx.Node) -> bool:
    """Is the result the main operand with its elements changed, moved or joined by others?"""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return node.op == "call_function"  # an item of a tuple
    views = any(r.alias_info is not None for r in target._schema.returns)
    joins = target in (torch.ops.aten.cat.default, torch.ops.aten.clone.default)
    return views or joins or torch.Tag.pointwise in target.tags or bool(operators_of(target))


def _roots_after(consumer: fx.Node, roots: Collection[str]) -> list[fx.Node]:
    """The consumer and what follows it soon, where a site could end."""
    near = {consumer: None}
    for _ in range(3):
        near |= {user: None for node in near for user in node.users}
    return [n for n in near if not set(operators_of(n.target)).isdisjoint(roots)]


def _explain(matcher: Matcher, rules: Sequence[Rule], consumer: fx.Node, anchor: fx.Node) -> str:
    deepest: Mismatch | None = None
    for rule in rules:
        for root in _roots_after(consumer, rule.roots):
            for _ in matcher.match(rule.compiled, root):
                break
            found = matcher.deepest
            if found is not None and (deepest is None or found.depth > deepest.depth):
                deepest = found
    if deepest is None or deepest.found is None:
        return f"around {anchor.name}: not a known form"
    return f"expected {deepest.wanted}, found {found_at(deepest.found)}"
