"""What the pass found: every site of every captured graph, and what could not be captured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .reasons import Reason
from .site import Site

SCHEMA_VERSION = 1


@dataclass
class Capture:
    """One captured graph: its size, its sites, seconds spent capturing, matching and rewriting.

    ``work`` is the number of floating point operations of one call of it, at the example inputs'
    sizes: of its matrix products, convolutions and fused attention.

    ``weights`` identifies the parameters that it reads; ``compilations`` counts how often the same
    code on the same weights was compiled, for other shapes or modes: the sites are those of the last.
    """

    name: str
    nodes: int
    sites: list[Site] = field(default_factory=list)
    capture_seconds: float = 0.0
    rewrite_seconds: float = 0.0
    weights: frozenset[int] = frozenset()
    compilations: int = 1
    work: int = 0

    @property
    def place(self) -> object:
        """What makes it the same graph as another, compiled again."""
        return self.weights, tuple((s.kind, s.module, s.location) for s in self.sites)


@dataclass
class Findings:
    """What the pass found in a model.

    ``captures`` has one entry a captured graph; ``notes`` name the parts that were not captured, or
    only in part, and why. ``predicted`` is True while the report stems from the dry run (nothing
    has been executed yet). ``counter`` gives the calls since the model first ran, by operator and
    implementation.
    """

    captures: list[Capture] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    predicted: bool = False
    counter: Callable[[], dict[str, dict[str, int]]] | None = field(default=None, repr=False, compare=False)

    @property
    def calls(self) -> dict[str, dict[str, int]]:
        """How often each operator took which implementation, ``{op: {implementation: calls}}``, since the
        model first ran: all calls of this process, those of other rewritten models included.
        """
        return self.counter() if self.counter is not None else {}

    @property
    def sites(self) -> list[Site]:
        """All sites, graph by graph, in the order of the graph: matched, rejected and shadowed ones."""
        return [site for capture in self.captures for site in capture.sites]

    @property
    def listed(self) -> list[Site]:
        """The sites that are no part of another: what tables show and count."""
        return [site for site in self.sites if not site.covered_by]

    @property
    def matched(self) -> list[Site]:
        return [site for site in self.sites if site.matched]

    @property
    def rejected(self) -> list[Site]:
        """The sites that are left as they are; not those that a matched one covers."""
        return [site for site in self.listed if not site.matched]

    def counts(self) -> dict[str, Counter[str]]:
        """Number of matched and rejected sites by kind."""
        by_kind: dict[str, Counter[str]] = {}
        for site in self.listed:
            by_kind.setdefault(site.kind, Counter())[site.status] += 1
        return by_kind

    def reasons(self) -> Counter[str]:
        """Number of rejected sites by the name of their reason."""
        return Counter(site.code.name for site in self.rejected if site.code)

    @property
    def work(self) -> int:
        """Floating point operations of one call of everything captured, at the example inputs' sizes."""
        return sum(capture.work for capture in self.captures)

    def covered(self) -> tuple[int, int]:
        """The part of ``work`` that matched sites are, and that rejected ones are."""
        rejected = [site for site in self.rejected if site.code is not Reason.OVERLAP]
        return sum(site.work for site in self.matched), sum(site.work for site in rejected)

    def add(self, capture: Capture) -> None:
        """Add a captured graph; one that was captured before, for other shapes, is replaced."""
        for index, earlier in enumerate(self.captures):
            if earlier.place == capture.place:
                capture.compilations = earlier.compilations + 1
                self.captures[index] = capture
                return
        self.captures.append(capture)

    def note(self, text: str) -> None:
        """Add a note once."""
        if text not in self.notes:
            self.notes.append(text)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data; ``schema`` is raised when a field changes its meaning."""
        return {
            "schema": SCHEMA_VERSION,
            "predicted": self.predicted,
            "captures": [
                {
                    "name": c.name,
                    "nodes": c.nodes,
                    "work": c.work,
                    "capture_seconds": round(c.capture_seconds, 4),
                    "rewrite_seconds": round(c.rewrite_seconds, 4),
                }
                for c in self.captures
            ],
            "notes": list(self.notes),
            "calls": self.calls,
            "sites": [site.to_dict() for site in self.sites],
        }

    def summary(self) -> str:
        """One line: how many sites were found, matched and rejected, by kind."""
        if not self.sites:
            return "no sites found"
        parts = [
            f"{kind} {count['matched']} of {count.total()}" for kind, count in sorted(self.counts().items())
        ]
        return f"{len(self.matched)} of {len(self.listed)} sites matched: " + ", ".join(parts)
