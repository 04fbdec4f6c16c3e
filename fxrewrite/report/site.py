"""A site: one place of a model that a rule found, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .reasons import Reason

if TYPE_CHECKING:  # the command line shows its help without loading torch
    from ..guards.verdict import Judgement

KINDS = ("sdpa", "linear", "fp8_matmul", "linear_attention")


@dataclass(frozen=True)
class Refusal:
    """An implementation of the op that does not take this site, and the requirement that refused."""

    implementation: str
    requirement: str


@dataclass(frozen=True)
class Operation:
    """A line of the captured graph, "scores = aten.matmul.default(q, k_t)", and the user's line behind it."""

    text: str
    location: str
    source: str


@dataclass
class Site:
    """One candidate, either matched (replaced) or rejected (left as it is).

    ``id`` is unique within a report; ``module`` the path of the innermost ``nn.Module`` in the
    model ("" where unknown); ``location`` the user's "file:line"; ``source`` that line's text;
    ``node`` the anchor's name in the captured graph; ``operands`` dtype and shape by capture name;
    ``implementation`` the kernel expected to run (None when rejected); ``refusals`` the better ones
    that do not apply, best first; ``lowered`` what the kernel computes in lower precision at quality "high",
    "" for nothing; ``flops`` the work of one call as text (an expression where sizes
    are symbolic), "" where not counted; ``work`` the same at the sizes of the example inputs;
    ``bytes`` what operands and result take in memory there: the least that a call can move;
    ``operations`` the captured code from operands to result; ``covered_by`` the id of the matched site
    that this one is a part of: it is replaced with it (reason OVERLAP), and counted there.
    """

    id: str
    kind: str
    status: str
    rule: str
    code: Reason | None = None
    detail: str = ""
    module: str = ""
    location: str = ""
    source: str = ""
    node: str = ""
    operands: dict[str, str] = field(default_factory=dict)
    judgements: tuple[Judgement, ...] = ()
    implementation: str | None = None
    refusals: tuple[Refusal, ...] = ()
    lowered: str = ""
    flops: str = ""
    work: int = 0
    bytes: int = 0
    operations: tuple[Operation, ...] = ()
    covered_by: str = ""

    @property
    def matched(self) -> bool:
        return self.status == "matched"

    @property
    def reason(self) -> str:
        """Why the site was rejected, in one line; "" for a matched site."""
        if self.code is None:
            return ""
        return f"{self.code.name}: {self.detail or self.code.value}"

    def to_dict(self) -> dict[str, Any]:
        """The site as plain data, as the JSON report has it."""
        return {
            "id": self.id,
            "kind": self.kind,
            "status": self.status,
            "rule": self.rule,
            "code": self.code.name if self.code else None,
            "reason": self.reason,
            "module": self.module,
            "location": self.location,
            "source": self.source,
            "node": self.node,
            "operands": dict(self.operands),
            "guards": [
                {
                    "guard": j.guard,
                    "verdict": j.verdict.value,
                    "evidence": j.evidence,
                    "detail": j.detail,
                    "residual": j.residual,
                }
                for j in self.judgements
            ],
            "implementation": self.implementation,
            "refusals": [
                {"implementation": r.implementation, "requirement": r.requirement} for r in self.refusals
            ],
            "lowered": self.lowered,
            "flops": self.flops,
            "work": self.work,
            "bytes": self.bytes,
            "covered_by": self.covered_by,
            "operations": [
                {"text": o.text, "location": o.location, "source": o.source} for o in self.operations
            ],
        }
