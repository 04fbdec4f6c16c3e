"""The matcher: finds a pattern at a node, by backtracking over readings and alternatives."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from .aliasing import Aliasing
from .contractions import product_orders
from .masks import Masks
from .pattern import AnyOf, Call, Contracted, Hole, Pattern, Repeat, Transposed, Variable
from .repeated import passed_between, unrepeated
from .terms import Term, operators_of, readings
from .transparent import float_cast, rearranged, unchanged
from .value import View, is_tensor, plain

Binding = View | int | float | None
Step = tuple[str, dict[str, Binding]]

# No value passes through more operators than this between two parts of a pattern.
MAX_STEPS = 12


@dataclass(frozen=True)
class Match:
    """A pattern found at ``root``.

    ``value`` is the root as the pattern describes it (the pattern may describe it transposed);
    ``bindings`` are the captures; ``steps`` what ``op.repeat`` found, first applied first;
    ``attrs`` the attributes of the fused call that the pattern named; ``computed`` the nodes whose
    results the replacement makes unnecessary (they must have no other users, unless they are
    ``remade``: values that the replacement makes again at no cost); ``seen`` all nodes between operands
    and root, those that were looked through included.
    """

    root: fx.Node
    aliasing: Aliasing
    masks: Masks
    value: View
    bindings: dict[str, Binding] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    attrs: dict[str, Any] = field(default_factory=dict)
    computed: frozenset[fx.Node] = frozenset()
    seen: frozenset[fx.Node] = frozenset()
    remade: frozenset[fx.Node] = frozenset()

    def changed(self, **fields: Any) -> Match:
        """The match with other values of some fields: ``dataclasses.replace`` at a third of its cost."""
        made = object.__new__(Match)
        made.__dict__.update(self.__dict__, **fields)
        return made

    def __getitem__(self, name: str) -> View:
        """The tensor captured as ``name``."""
        found = self.bindings[name]
        if not isinstance(found, View):
            raise TypeError(f"{name} is {found!r}, not a tensor")
        return found

    def has(self, name: str) -> bool:
        """Was ``name`` captured, as something other than None?"""
        return self.bindings.get(name) is not None

    def number(self, name: str, default: float) -> float:
        """The number captured as ``name``."""
        found = self.bindings.get(name)
        return default if found is None or isinstance(found, View) else float(found)

    def ungrouped(self, *names: str) -> Match:
        """The match with these tensors bound to what each is a repetition of along its heads (dim -3)."""
        bindings, seen = dict(self.bindings), set(self.seen)
        for name in names:
            repeated = self[name]
            source = unrepeated(repeated, -3) if repeated.rank == 4 else None
            if source is None:
                return self
            passed = passed_between(repeated, source)
            if any(map(self.aliasing.is_mutated, passed)):
                return self
            bindings[name] = source
            seen |= passed
        return self.changed(bindings=bindings, seen=frozenset(seen))

    def narrowed(self, *names: str) -> Match:
        """The match with these tensors bound to what was exactly widened into them, if anything.

        ``q.float()`` of a bfloat16 ``q`` is bound to ``q`` itself.
        """
        bindings, seen = dict(self.bindings), set(self.seen)
        for name in names:
            view = bindings.get(name)
            while isinstance(view, View) and (inner := _exact_source(view, self.aliasing)) is not None:
                seen.add(view.node)
                view = inner
            bindings[name] = view
        return self.changed(bindings=bindings, seen=frozenset(seen))

    def independent_of(self, name: str) -> frozenset[fx.Node]:
        """The inner nodes that would be the same with another tensor captured as ``name``."""
        dependent = {self[name].node}
        for node in sorted(self.seen, key=self.aliasing.position.__getitem__):
            if not dependent.isdisjoint(node.all_input_nodes):
                dependent.add(node)
        return self.seen - dependent - {self.root}

    def computes_in(self, dtype: torch.dtype) -> bool:
        """Is any value that the replacement makes unnecessary of this dtype?"""
        return any(getattr(node.meta["val"], "dtype", None) == dtype for node in self.computed)

    @property
    def operands(self) -> dict[str, View]:
        """All captured tensors, those of steps included."""
        found = {name: b for name, b in self.bindings.items() if isinstance(b, View)}
        for index, (step, bound) in enumerate(self.steps):
            found.update(
                {f"{step}{index}.{n}": b for n, b in bound.items() if isinstance(b, View) and n != APPLIED_TO}
            )
        return found


@dataclass
class Mismatch:
    """How far a failed attempt got: the operator wanted, and the node found in its place."""

    depth: int
    wanted: str
    found: fx.Node | None
    matched: frozenset[fx.Node]


class Matcher:
    """Matches patterns in one graph."""

    def __init__(self, graph: fx.Graph, aliasing: Aliasing) -> None:
        self.graph = graph
        self.aliasing = aliasing
        self.masks = Masks(aliasing)
        self.deepest: Mismatch | None = None
        self._index: dict[str, list[fx.Node]] = {}
        self._readings: dict[View, list[Term]] = {}
        for node in graph.nodes:
            if is_tensor(node):
                for op in operators_of(node.target):
                    self._index.setdefault(op, []).append(node)

    def nodes_reading_as(self, ops: set[str]) -> list[fx.Node]:
        """The nodes that may be read as one of ``ops``, in the order of the graph."""
        found = {node: None for op in ops for node in self._index.get(op, ())}
        return sorted(found, key=self.aliasing.position.__getitem__)

    def match(self, pattern: Pattern, root: fx.Node) -> Iterator[Match]:
        """All ways in which ``pattern`` describes the value of ``root``, the preferred one first."""
        self.deepest = None
        yield from self._match_at_root(pattern, root)

    def _match_at_root(self, pattern: Pattern, root: fx.Node) -> Iterator[Match]:
        if isinstance(pattern, AnyOf):
            for option in pattern.options:
                yield from self._match_at_root(option, root)
        elif isinstance(pattern, Transposed) and isinstance(pattern.inner, Call):
            view = _transposed(plain(root), pattern)
            if view is not None:
                match = Match(root, self.aliasing, self.masks, view)
                yield from self._call_at(pattern.inner, view, match, None)
        elif isinstance(pattern, Contracted):
            for order in product_orders(root):
                view = plain(root).pick(order)
                match = Match(root, self.aliasing, self.masks, view)
                yield from self._call_at(pattern.inner, view, match, None)
        elif isinstance(pattern, Call):
            # at the root nothing is looked through: the site's value is this node's
            view = plain(root)
            yield from self._call_at(pattern, view, Match(root, self.aliasing, self.masks, view), None)
        else:
            raise TypeError(f"a pattern must end in an operator, not {type(pattern).__name__}")

    # ------------------------------------------------------------------------------------- recursion

    def _match(self, pattern: Any, item: Any, match: Match, hole: Any) -> Iterator[Match]:
        """Match ``pattern`` to ``item`` (a view, term, number or None), extending ``match``."""
        if isinstance(pattern, AnyOf):
            for option in pattern.options:
                yield from self._match(option, item, match, hole)
        elif isinstance(pattern, Transposed):
            view = _transposed(item, pattern) if isinstance(item, View) else None
            if view is not None:
                yield from self._match(pattern.inner, view, match, hole)
        elif isinstance(pattern, Variable):
            yield from self._bind(pattern, item, match)
        elif isinstance(pattern, Hole):
            yield from hole(item, match)
        elif isinstance(pattern, Repeat):
            yield from self._repeat(pattern, item, match, MAX_STEPS, ())
        elif isinstance(pattern, Call):
            yield from self._call(pattern, item, match, hole)
        elif item == pattern and type(item) in (int, float, type(None)):
            yield match  # a constant

    def _bind(self, variable: Variable, item: Any, match: Match) -> Iterator[Match]:
        if (
            isinstance(item, Term)
            or (variable.number and isinstance(item, View))
            or isinstance(item, fx.Node)
        ):
            return
        if isinstance(item, View):
            item, passed = self._source(item)
            match = match.changed(seen=match.seen | passed)
        if variable.name not in match.bindings:
            yield match.changed(bindings={**match.bindings, variable.name: item})
        elif match.bindings[variable.name] == item:
            yield match

    def _source(self, view: View) -> tuple[View, frozenset[fx.Node]]:
        """The operand behind ``view``: what was only rearranged or copied is looked through."""
        passed: set[fx.Node] = set()
        while (inner := _same_value(view, self.aliasing)) is not None:
            passed.add(view.node)
            view = inner
        return view, frozenset(passed)

    def _call(self, pattern: Call, item: Any, match: Match, hole: Any) -> Iterator[Match]:
        if isinstance(item, Term):
            yield from self._term(pattern, item, match, hole)
            return
        if not isinstance(item, View):
            return
        for _ in range(MAX_STEPS):
            yield from self._call_at(pattern, item, match, hole)
            inner = _same_value(item, self.aliasing)
            if inner is None and not self.aliasing.is_mutated(item.node):
                inner = float_cast(item)
            if inner is None:
                self._note(pattern.op, item.node, match)
                return
            match = match.changed(seen=match.seen | {item.node})
            item = inner

    def _call_at(self, pattern: Call, view: View, match: Match, hole: Any) -> Iterator[Match]:
        # what is written to later is not what was computed; but a root of its own memory may be
        # written to after the site as its replacement may
        is_root = view.node is match.root and self.aliasing.is_fresh(view.node)
        if self.aliasing.is_mutated(view.node) and not is_root:
            return
        if view not in self._readings:
            self._readings[view] = readings(view)
        for term in self._readings[view]:
            if term.op == pattern.op and not any(map(self.aliasing.is_mutated, term.folded)):
                nodes = {view.node, *term.folded}
                here = match.changed(seen=match.seen | nodes, computed=match.computed | nodes)
                yield from self._term(pattern, term, here, hole, view.node)

    def _term(
        self, pattern: Call, term: Term, match: Match, hole: Any, node: fx.Node | None = None
    ) -> Iterator[Match]:
        if term.op != pattern.op or len(term.args) != len(pattern.args):
            return
        if any(not _same(term.attrs.get(name), wanted) for name, wanted in pattern.attrs.items()):
            self._note(f"{pattern.op} with {pattern.attrs}", node or match.root, match)
            return
        if term.attrs and not pattern.attrs:
            match = match.changed(attrs={**match.attrs, **term.attrs})
        yield from self._arguments(pattern.args, term.args, match, hole)
        if pattern.commutative:
            yield from self._arguments(pattern.args, term.args[::-1], match, hole)

    def _arguments(
        self, patterns: tuple[Any, ...], items: tuple[Any, ...], match: Match, hole: Any
    ) -> Iterator[Match]:
        if not patterns:
            yield match
            return
        for extended in self._match(patterns[0], items[0], match, hole):
            yield from self._arguments(patterns[1:], items[1:], extended, hole)

    def _repeat(
        self, pattern: Repeat, item: Any, match: Match, budget: int, outer: tuple[Step, ...]
    ) -> Iterator[Match]:
        for base in self._match(pattern.base, item, match, None):
            yield base.changed(steps=base.steps + outer)
        if not budget:
            return
        for name, (step, own) in pattern.steps.items():

            def inside(
                inner: Any, found: Match, name: str = name, own: tuple[str, ...] = own
            ) -> Iterator[Match]:
                # the step's own variables may not be bound yet: it is recorded once the step is complete
                yield found.changed(bindings={**found.bindings, _HOLE: inner})

            for applied in self._match(step, item, _without(match, own), inside):
                inner = applied.bindings[_HOLE]
                bound = {n: applied.bindings[n] for n in own if n in applied.bindings}
                bound[APPLIED_TO] = inner
                cleaned = _without(applied, (*own, _HOLE))
                yield from self._repeat(pattern, inner, cleaned, budget - 1, ((name, bound), *outer))

    def _note(self, wanted: str, found: fx.Node, match: Match) -> None:
        depth = len(match.computed)
        if self.deepest is None or depth > self.deepest.depth:
            self.deepest = Mismatch(depth, wanted, found, match.computed)


_HOLE = "<hole>"
# The name under which a step records the value that it was applied to (a view or a term).
APPLIED_TO = "applied_to"


def _transposed(view: View, pattern: Transposed) -> View | None:
    """``view`` as the pattern inside a Transposed sees it."""
    if view.rank < max(-pattern.a, -pattern.b):
        return None
    order = list(range(view.rank))
    order[pattern.a], order[pattern.b] = order[pattern.b], order[pattern.a]
    return view.pick(order)


def _same_value(view: View, aliasing: Aliasing) -> View | None:
    """The value one operator further in, where that operator does not change it."""
    inner = rearranged(view)
    if inner is None and not aliasing.is_mutated(view.node):
        # a copy that is written to later is not what it was copied from
        inner = unchanged(view)
    return inner


def _exact_source(view: View, aliasing: Aliasing) -> View | None:
    """Like ``_same_value``, and through casts that only widen."""
    inner = _same_value(view, aliasing)
    if inner is None and not aliasing.is_mutated(view.node):
        cast = float_cast(view)
        if cast is not None and torch.promote_types(cast.dtype, view.dtype) == view.dtype:
            inner = cast
    return inner


def _without(match: Match, names: tuple[str, ...]) -> Match:
    return match.changed(bindings={n: b for n, b in match.bindings.items() if n not in names})


def _same(found: Any, wanted: Any) -> bool:
    if isinstance(found, float) and isinstance(wanted, float):
        return math.isclose(found, wanted, rel_tol=1e-9)
    return bool(found == wanted)


def root_operators(pattern: Pattern) -> set[str]:
    """The canonical operators that a site of this pattern can end in."""
    if isinstance(pattern, AnyOf):
        return set().union(*(root_operators(option) for option in pattern.options))
    if isinstance(pattern, (Transposed, Contracted)):
        return root_operators(pattern.inner)
    return {pattern.op} if isinstance(pattern, Call) else set()
