"""Candidates: matches turned into sites, each with a verdict."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ..capture import example_size
from ..guards.verdict import Judgement, Verdict
from ..guards.vocabulary import short
from ..matching import Match, Rule, View
from ..report import Operation, Reason, Site
from ..report.words import short_location


@dataclass(eq=False)
class Candidate:
    """A match on its way to becoming a site."""

    rule: Rule
    match: Match
    site: Site
    inserted: list[fx.Node] = field(default_factory=list)
    result: fx.Node | None = None
    winner: Candidate | None = None
    """The chosen candidate that this one overlaps."""

    @property
    def nodes(self) -> frozenset[fx.Node]:
        """The nodes that the replacement makes unnecessary."""
        return self.match.computed | {self.match.root}

    def reject(self, code: Reason, detail: str = "") -> None:
        self.site.status, self.site.code, self.site.detail = "rejected", code, detail
        self.site.implementation, self.site.lowered = None, ""

    def lose_to(self, winner: Candidate) -> None:
        """Reject, since ``winner`` replaces nodes of this one."""
        self.winner = winner
        how = "part of" if self.covered else "shares nodes with"
        self.reject(Reason.OVERLAP, f"{how} the {winner.site.kind} site at {winner.site.node}")

    @property
    def covered(self) -> bool:
        """Does the winner replace all of this one?"""
        return self.winner is not None and self.nodes <= self.winner.nodes


def new_site(rule_name: str, kind: str, node: fx.Node, operands: dict[str, View]) -> Site:
    """A site at ``node``, not yet judged."""
    location, source = where(node)
    return Site(
        id="",
        kind=kind,
        status="matched",
        rule=rule_name,
        module=module_path(node),
        location=location,
        source=source,
        node=node.name,
        operands={name: describe(view) for name, view in operands.items()},
    )


def describe(view: View) -> str:
    """ "bfloat16[1, 8, s0, 64]"."""
    return f"{short(view.dtype)}[{', '.join(str(s) for s in view.shape)}]"


def operations(match: Match) -> tuple[Operation, ...]:
    """The captured code of a match, operands first; captured tensors have the names that the rule gives."""
    names = {view.node: name for name, view in match.operands.items() if view.is_plain}
    nodes = sorted(match.seen | {match.root}, key=match.aliasing.position.__getitem__)
    return tuple(Operation(code(node, names), *where(node)) for node in nodes if node not in names)


def code(node: fx.Node, names: Mapping[fx.Node, str]) -> str:
    """ "scores = aten.matmul.default(q, k_t)"."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: _Name(names.get(n, n.name)))
    parts = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
    return f"{node.name} = {node.target}({', '.join(parts)})"


class _Name(str):
    """A string that shows as it is."""

    def __repr__(self) -> str:
        return str(self)


def traffic(match: Match) -> int:
    """Bytes of the operands and the result of a match: the least that a call has to move."""
    nodes = {view.node for view in match.operands.values()} | {match.root}
    return sum(
        math.prod(size for size, stride in _layout(value) if stride != 0) * value.element_size()
        for value in (node.meta["val"] for node in nodes)
    )


def _layout(value: torch.Tensor) -> list[tuple[int, int]]:
    """Size and stride of each dim, as numbers; a stride of 0 repeats what is there once."""
    return [
        (example_size(size), example_size(stride))
        for size, stride in zip(value.shape, value.stride(), strict=True)
    ]


_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in .*\n\s*(?P<source>.*)')
_NOT_THE_USERS = (torch.__file__.rsplit("/", 1)[0], __file__.rsplit("/", 2)[0])


def where(node: fx.Node) -> tuple[str, str]:
    """("file:line", source text) of the innermost frame of the user's code, or ("", "")."""
    frames = list(_FRAME.finditer(node.meta.get("stack_trace") or ""))
    for frame in reversed(frames):
        if not frame["file"].startswith(_NOT_THE_USERS):
            return f"{frame['file']}:{frame['line']}", frame["source"].strip()
    return "", ""


def found_at(node: fx.Node) -> str:
    """What stands where another operator was expected: "softmax_1 = aten.softmax.int(..., -2) at a.py:3: ..."

    Operands are left out: equal layers would differ by their names.
    """
    location, source = where(node)
    found = f"{node.name} ({node.op})"
    if node.op == "call_function":
        found = code(node, dict.fromkeys(node.all_input_nodes, "..."))
    return found + (f" at {short_location(location)}: {source}" if location else "")


def module_path(node: fx.Node) -> str:
    """Path of the innermost module that ``node`` comes from ("blocks.0.attn"), "" if unknown."""
    stack: dict[str, Any] = node.meta.get("nn_module_stack") or {}
    if not stack:
        return ""
    path = str(list(stack.values())[-1][0])
    # the model is a local of the frame: `self`, or `args[0]` where a decorator wraps forward
    path = path.replace(".__dict__['_modules']", "").replace("._modules", "")
    path = re.sub(r"^[LG]\['\w+'\](\[0\])?(\.__self__)?", "", path)
    return re.sub(r"\['?([^'\]]+)'?\]", r".\1", path).strip(".")


def refuted(judgements: Sequence[Judgement]) -> Judgement | None:
    return next((j for j in judgements if j.verdict is Verdict.REFUTED), None)
