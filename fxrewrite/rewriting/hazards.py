"""What makes a structurally right match unsafe: gradients, autocast, writes in between, other users."""

from __future__ import annotations

import operator

import torch
from torch import fx

from ..capture import in_autocast
from ..matching import Aliasing, Match
from ..report import Reason

Refused = tuple[Reason, str] | None


class Hazards:
    """Hazards of one graph; ``check`` gives the first that a match runs into."""

    def __init__(self, gm: fx.GraphModule, aliasing: Aliasing, grad_enabled: bool) -> None:
        self._aliasing = aliasing
        self._autocast = in_autocast(gm)
        self._needs_grad = _needing_grad(gm.graph, grad_enabled)

    def check(self, match: Match) -> Refused:
        return self._gradient(match) or self._region(match) or self._escape(match) or self._mutation(match)

    def _gradient(self, match: Match) -> Refused:
        return (Reason.REQUIRES_GRAD, "") if match.root in self._needs_grad else None

    def _region(self, match: Match) -> Refused:
        inside = not self._autocast.isdisjoint(match.seen | {match.root})
        return (Reason.AUTOCAST, "") if inside else None

    def _escape(self, match: Match) -> Refused:
        inside = match.seen | {match.root}
        # what is only looked through is an inner value too, where it hands on a computed one
        inner = set(match.computed)
        for node in sorted(match.seen, key=self._aliasing.position.__getitem__):
            if not inner.isdisjoint(node.all_input_nodes):
                inner.add(node)
        for node in sorted(inner - {match.root} - match.remade, key=self._aliasing.position.__getitem__):
            outside = [user for user in node.users if user not in inside and not _is_unused_item(user)]
            if outside:
                what = (
                    "returned or stored by the model"
                    if outside[0].op == "output"
                    else f"also used by {outside[0].name}"
                )
                return Reason.ESCAPES, f"{node.name}, an inner value of the site, is {what}"
        return None

    def _mutation(self, match: Match) -> Refused:
        """Is an operand written to after the site first read it, and before the replacement would?"""
        position, inside = self._aliasing.position, match.seen | {match.root}
        for operand in {view.node for view in match.operands.values()}:
            first = min(
                (position[user] for user in operand.users if user in inside), default=position[match.root]
            )
            written = self._aliasing.written_between(operand, first, position[match.root])
            if written is not None:
                return Reason.MUTATION, f"{written.name} is written to in place between the nodes of the site"
        return None


def _is_unused_item(node: fx.Node) -> bool:
    """Is it an item of a tuple that nobody reads: the indices beside a maximum, say?"""
    return node.target is operator.getitem and not node.users


def _needing_grad(graph: fx.Graph, grad_enabled: bool) -> set[fx.Node]:
    """Nodes whose value autograd would track, conservatively, where gradients are enabled."""
    tracked: set[fx.Node] = set()
    enabled = grad_enabled
    for node in graph.nodes:
        if node.target is torch._C._set_grad_enabled:
            enabled = bool(node.args[0])
        elif node.op == "placeholder":
            if node.meta.get("requires_grad"):
                tracked.add(node)
        elif enabled and any(n in tracked for n in node.all_input_nodes):
            value = node.meta.get("val")
            if not isinstance(value, torch.Tensor) or value.is_floating_point() or value.is_complex():
                tracked.add(node)
    return tracked if grad_enabled or tracked else set()
