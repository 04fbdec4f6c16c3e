"""The driver: one graph in, its sites and the rewritten graph out. Every door uses it."""

from __future__ import annotations

import contextlib
import logging
import operator
import time
from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import fx

from ..capture import adding_guards, fake_mode_of, shape_env_of_graph
from ..errors import first_line, is_strict
from ..guards.prover import prove_equal
from ..guards.verdict import Judgement, Verdict
from ..guards.vocabulary import Guard, blocking, judged
from ..matching import Aliasing, Match, Matcher, Rule
from ..matching.aliasing import shares_memory
from ..ops.cuda import Lowering
from ..report import Capture, Reason, Site
from .builder import Builder, UnbuildableError
from .candidates import Candidate, new_site, operations, refuted, traffic
from .choice import arguments_of, choose
from .functional import simplify
from .hazards import Hazards
from .near_miss import near_misses
from .opaque import opaque_sites
from .options import Options
from .select import one_per_place, select, shadow
from .trace import Trace
from .work import Work


def rewrite_graph(
    gm: fx.GraphModule,
    rules: Sequence[Rule],
    options: Options,
    name: str,
    *,
    grad_enabled: bool,
    may_guard: bool = False,
) -> Capture:
    """Find and replace the sites of ``gm``, a functional pre-dispatch ATen graph, in place.

    Returns what was found; where no site matched, ``gm`` is left as it was. ``may_guard``: under
    ``on_unknown="guard"`` conditions become guards of the graph's ShapeEnv. Otherwise nothing is added to it.
    """
    started = time.perf_counter()
    with no_new_guards(gm):
        simplify(gm)
        pass_ = Pass(gm, rules, options, grad_enabled, may_guard)
        sites = pass_.run()
    for index, site in enumerate(sites):
        site.id = f"{name}.{index}"
    for candidate in pass_.found:
        if candidate.winner is not None and candidate.covered:
            candidate.site.covered_by = candidate.winner.site.id
    return Capture(
        name=name,
        nodes=len(gm.graph.nodes),
        sites=sites,
        rewrite_seconds=time.perf_counter() - started,
        work=pass_.work.total,
    )


@contextlib.contextmanager
def no_new_guards(gm: fx.GraphModule) -> Iterator[None]:
    """A context in which nothing becomes a guard of the ShapeEnv of the graph's sizes."""
    environment = shape_env_of_graph(gm)
    with environment.suppress_guards() if environment is not None else contextlib.nullcontext():
        yield


class Pass:
    """One run over one graph."""

    def __init__(
        self,
        gm: fx.GraphModule,
        rules: Sequence[Rule],
        options: Options,
        grad_enabled: bool,
        may_guard: bool = False,
    ) -> None:
        self.may_guard = may_guard
        self.gm, self.rules, self.options = gm, rules, options
        self.aliasing = Aliasing(gm.graph)
        self.matcher = Matcher(gm.graph, self.aliasing)
        self.hazards = Hazards(gm, self.aliasing, grad_enabled)
        self.mode = fake_mode_of(gm)
        self.found: list[Candidate] = []
        self.faults: dict[tuple[str, fx.Node], Site] = {}
        self.work = Work(gm.graph)
        self.trace = Trace(rules)
        self.unused = {n for n in gm.graph.nodes if not n.users and n.target is not operator.getitem}

    def run(self) -> list[Site]:
        found = list(self._matches())
        missed = near_misses(self.matcher, self.rules, [(c.rule, c.match) for c in found]) + opaque_sites(
            self.gm.graph
        )
        for candidate in found:
            with self._contained(candidate.site):
                self._judge(candidate)
        # every replacement is built, so that selection knows which have a kernel
        for candidate in found:
            if candidate.site.matched:
                with self._contained(candidate.site):
                    self._build(candidate)
            if not candidate.site.matched:
                self._erase(candidate.inserted)
        chosen = select([c for c in found if c.site.matched])
        shadow(found, chosen)
        self.found = found
        self._apply(found, chosen)
        placed = [(c.match.root, c.site) for c in one_per_place(found)] + missed
        placed += [(node, site) for (_, node), site in self.faults.items()]
        return [site for _, site in sorted(placed, key=lambda p: self.aliasing.position[p[0]])]

    def _apply(self, found: list[Candidate], chosen: list[Candidate]) -> None:
        """Put the chosen replacements in the place of their roots, and take the others out again."""
        for candidate in found:
            if candidate not in chosen:
                self._erase(candidate.inserted)
        for candidate in chosen:
            candidate.match.root.replace_all_uses_with(cast(fx.Node, candidate.result))
        if chosen:
            # What was replaced goes, even if fx takes it for random (the fused attention, for its dropout).
            # What had no users before is none of ours: it may have an effect that fx does not know of.
            replaced = {node for c in chosen for node in c.match.seen | {c.match.root}}
            self.gm.graph.eliminate_dead_code(
                lambda node: (node.is_impure() and node not in replaced) or node in self.unused
            )
            self.gm.graph.lint()
            self.gm.recompile()

    def _erase(self, inserted: list[fx.Node]) -> None:
        for node in reversed(inserted):
            if not node.users:  # another site may use a size that was computed here
                self.gm.graph.erase_node(node)
        inserted.clear()

    def _matches(self) -> Iterator[Candidate]:
        taken: set[tuple[str, fx.Node]] = set()
        for rule in self.rules:
            for root in self.matcher.nodes_reading_as(rule.roots):
                place = rule.kind, root
                if place in taken:
                    continue
                try:
                    found = self._first_match(rule, root)
                    if self.trace.wants(rule, root):
                        self.trace.tell(rule, root, found, self.matcher.deepest)
                except Exception as error:
                    fault = new_site(rule.name, rule.kind, root, {})
                    _contain(error, fault)
                    self.faults.setdefault(place, fault)
                    continue
                if found is not None:
                    taken.add(place)
                    self.faults.pop(place, None)
                    match, judgements = found
                    site = new_site(rule.name, rule.kind, rule.place(match), match.operands)
                    site.judgements = judgements
                    self._describe(site, match)
                    yield Candidate(rule, match, site)

    def _describe(self, site: Site, match: Match) -> None:
        """What the report tells of the code that was found: now, since rewriting takes it apart."""
        nodes = match.computed | {match.root}
        site.operations, site.bytes = operations(match), traffic(match)
        site.flops, site.work = self.work.expression(nodes), self.work.count(nodes)

    def _first_match(self, rule: Rule, root: fx.Node) -> tuple[Match, tuple[Judgement, ...]] | None:
        """The first match whose guards hold, with their judgements; where none does, the first."""
        fallback = None
        for match in self.matcher.match(rule.compiled, root):
            match = rule.refine(match)
            if not rule.applies(match):
                continue
            found = match, tuple(guard.judge() for guard in _guards(rule, match))
            if refuted(found[1]) is None:
                return found
            fallback = fallback or found
        return fallback

    @contextlib.contextmanager
    def _contained(self, site: Site) -> Iterator[None]:
        """A fault inside is not the model's: it rejects the site."""
        try:
            yield
        except Exception as error:
            _contain(error, site)

    # ------------------------------------------------------------------------------------- verdicts

    def _judge(self, candidate: Candidate) -> None:
        hazard = self.hazards.check(candidate.match)
        if hazard is not None:
            candidate.reject(*hazard)
            return
        site, on_unknown = candidate.site, self.options.on_unknown
        if on_unknown == "guard" and any(j.verdict is Verdict.UNKNOWN for j in site.judgements):
            with self._guarding():
                site.judgements = judged(_guards(candidate.rule, candidate.match), on_unknown)
        blocker = blocking(site.judgements, on_unknown)
        if blocker is None:
            return
        if blocker.is_open:
            candidate.reject(Reason.UNPROVED, blocker.residual or blocker.guard)
        else:
            candidate.reject(Reason.GUARD, blocker.detail or blocker.guard)

    def _guarding(self) -> contextlib.AbstractContextManager[None]:
        """A context in which a condition that is asked becomes a guard; in a dry run it is only asked."""
        return adding_guards() if self.may_guard else contextlib.nullcontext()

    def _build(self, candidate: Candidate) -> None:
        """Insert the replacement before the root; reject the site where it does not qualify."""
        root = candidate.match.root
        builder = Builder(self.gm.graph, root, self.mode)
        candidate.inserted = builder.inserted
        try:
            candidate.result = _replacement(candidate.rule, builder, candidate.match)
        except UnbuildableError as error:
            candidate.reject(Reason.METADATA, str(error))
        else:
            self._qualify(candidate, builder.inserted)
            difference = _difference(root.meta["val"], candidate.result.meta["val"])
            if self.aliasing.is_mutated(root) and any(
                shares_memory(candidate.result, view.node) for view in candidate.match.operands.values()
            ):
                candidate.reject(Reason.MUTATION, "the result, written to in place, would be an operand")
            if candidate.site.matched and difference:
                candidate.reject(Reason.METADATA, difference)

    def _qualify(self, candidate: Candidate, inserted: list[fx.Node]) -> None:
        """Choose the implementation of each of our ops among ``inserted``; reject where none applies."""
        site = candidate.site
        for node in list(inserted):
            if not isinstance(node.target, torch._ops.OpOverload) or node.target.namespace != "fxrewrite":
                continue
            values, named = fx.map_arg((node.args, dict(node.kwargs)), lambda n: n.meta["val"])
            schema = node.target._schema
            with self._guarding():
                choice = choose(
                    schema.name.removeprefix("fxrewrite::"),
                    arguments_of(schema, values, named),
                    on_unknown=self.options.on_unknown,
                )
            site.refusals += choice.refusals
            site.judgements += choice.judgements
            if choice.implementation is None:
                candidate.reject(choice.code, choice.refusals[-1].requirement if choice.refusals else "")
                return
            site.implementation = choice.implementation
            site.lowered = choice.lowered or site.lowered
            if choice.lower is not None:
                self._lower(candidate, node, choice.lower)

    def _lower(self, candidate: Candidate, node: fx.Node, lower: Lowering) -> None:
        """Put the framework's calls in the place of one of our ops."""
        builder = Builder(self.gm.graph, node, self.mode)
        schema = cast(torch._ops.OpOverload, node.target)._schema
        result = lower(builder, arguments_of(schema, node.args, node.kwargs))
        node.replace_all_uses_with(result)
        if candidate.result is node:
            candidate.result = result
        at = candidate.inserted.index(node)
        candidate.inserted[at : at + 1] = builder.inserted
        self.gm.graph.erase_node(node)


def _difference(before: torch.Tensor, after: torch.Tensor) -> str:
    """How the replacement's metadata differ from the original's, "" where they do not."""
    if before.dtype != after.dtype or before.device != after.device:
        return f"{after.dtype} on {after.device} in place of {before.dtype} on {before.device}"
    if before.dim() != after.dim():
        return f"rank {after.dim()} in place of {before.dim()}"
    for dim, (a, b) in enumerate(zip(before.shape, after.shape, strict=True)):
        if prove_equal(a, b, "").verdict is not Verdict.PROVED:
            return f"size {b} in place of {a} in dim {dim}"
    for dim, (a, b) in enumerate(zip(before.stride(), after.stride(), strict=True)):
        trivial = isinstance(before.shape[dim], int) and before.shape[dim] <= 1
        if not trivial and prove_equal(a, b, "").verdict is not Verdict.PROVED:
            return f"stride {b} in place of {a} in dim {dim}"
    return ""


def _guards(rule: Rule, match: Match) -> list[Guard]:
    guards = list(rule.guards(match))
    for guard in guards:
        if not isinstance(guard, Guard):
            raise TypeError(f"guards() gave {guard!r}: expected those of fxrewrite.guards")
    return guards


def _replacement(rule: Rule, builder: Builder, match: Match) -> fx.Node:
    result = rule.replace(builder, match)
    if not isinstance(result, fx.Node):
        raise TypeError(f"replace() gave {result!r}: expected what a call of `op` returns")
    return result


def _contain(error: Exception, site: Site) -> None:
    """Reject the site with reason INTERNAL, and log the fault; FXREWRITE_STRICT has it raised."""
    if is_strict():
        raise error
    site.status, site.code = "rejected", Reason.INTERNAL
    site.implementation, site.lowered = None, ""
    site.detail = f"{site.rule}: {type(error).__name__}: {first_line(error)}"
    place = site.location or site.node
    log = logging.getLogger("fxrewrite")
    told = error if log.isEnabledFor(logging.DEBUG) else None  # one line, unless the log is wanted
    log.warning(
        "rule %s failed at %s, which stays as it is: %s", site.rule, place, site.detail, exc_info=told
    )
