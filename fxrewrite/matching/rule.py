"""Rules: what to look for, when it may be replaced, and by what."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, ClassVar

from torch import fx

from ..guards.vocabulary import Guard
from .matcher import Match, root_operators
from .pattern import Pattern, compile_pattern


class Rule:
    """One way of computing something, and the operator that replaces it.

    Subclasses set ``kind`` and define ``pattern``, whose parameters after ``op`` name the captures,
    and ``replace``; ``guards`` and ``refine`` where needed. For example::

        class Plain(Rule):
            kind = "linear"

            def pattern(self, op, x, weight):
                return op.linear(x, weight)

            def guards(self, m):
                yield dtype_in(m["x"], [torch.bfloat16], "x")

            def replace(self, op, m):
                return op.fxrewrite.linear(m["x"], m["weight"])

    ``kind`` is the family under which sites are reported. ``anchor`` names the operator (of
    ``terms``) by which a near miss is recognised: a node that reads as the anchor, comes soon after
    one that reads as ``fed_by`` (if any is named) and soon before one that reads as ``feeds``, and
    yet is in no match, is reported as rejected.
    """

    kind: ClassVar[str]
    anchor: ClassVar[str | None] = None
    fed_by: ClassVar[frozenset[str]] = frozenset({"matmul"})
    feeds: ClassVar[frozenset[str]] = frozenset({"matmul"})

    # Subclasses give pattern() the captures as further parameters.
    pattern: Any

    def refine(self, m: Match) -> Match:
        """A last look at the match: bind narrower operands, say. Default: as it is."""
        return m

    def applies(self, m: Match) -> bool:
        """Is the match a site of this kind at all? False: it is none, and not reported."""
        return True

    def is_anchor(self, node: fx.Node) -> bool:
        """May this node, which reads as the anchor, be part of a near miss?"""
        return True

    def place(self, m: Match) -> fx.Node:
        """The node whose module and line the report gives. Default: the one that the site ends in."""
        return m.root

    def guards(self, m: Match) -> Iterable[Guard]:
        """The conditions, beyond structure, under which the replacement means the same."""
        return ()

    def replace(self, op: Any, m: Match) -> Any:
        """Build the replacement: ``op.fxrewrite.sdpa(...)``, ``op.aten.permute(...)``; return its value."""
        raise NotImplementedError(f"{type(self).__name__} has no replace()")

    @property
    def name(self) -> str:
        return type(self).__name__

    @cached_property
    def compiled(self) -> Pattern:
        """The pattern, built once."""
        return compile_pattern(self.pattern)

    @cached_property
    def roots(self) -> set[str]:
        """The operators in which a site of this rule can end."""
        return root_operators(self.compiled)
