"""Choice of the implementation for a call of one of our operators: the first of its list that qualifies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..guards.verdict import Judgement
from ..guards.vocabulary import blocking, judged
from ..ops.cuda import CUDA_IMPLEMENTATIONS, Lowering, on_cuda
from ..ops.evidence import MEASURED
from ..ops.implementations import IMPLEMENTATIONS
from ..report import Reason, Refusal


@dataclass(frozen=True)
class Choice:
    """The chosen implementation with its requirements as judged, or None and the class of the last refusal.

    ``refusals`` are those before it, best first. ``lower``: see `CudaImplementation`. ``lowered`` says what
    the implementation computes in lower precision at quality "high".
    """

    implementation: str | None
    judgements: tuple[Judgement, ...]
    refusals: tuple[Refusal, ...]
    code: Reason = Reason.GUARD
    lower: Lowering | None = None
    lowered: str = ""


def choose(op: str, arguments: Mapping[str, Any], *, on_unknown: str = "dispatch") -> Choice:
    """Choose for a call of ``fxrewrite::op`` with all its ``arguments`` by name, defaults included.

    With ``on_unknown`` "reject" a requirement that is neither proved nor refuted refuses too; with "guard"
    it is settled with the sizes at hand.
    """
    refusals: list[Refusal] = []
    code = Reason.GUARD
    listed = CUDA_IMPLEMENTATIONS[op] if on_cuda(arguments) else IMPLEMENTATIONS[op]
    for implementation in listed:
        judgements = judged(implementation.guards(arguments), on_unknown)
        blocker = blocking(judgements, on_unknown)
        if blocker is None:
            lower = getattr(implementation, "lower", None)
            lowered = implementation.lowered(arguments)
            return Choice(implementation.name, judgements, tuple(refusals), lower=lower, lowered=lowered)
        requirement = blocker.detail or blocker.residual or blocker.guard
        if blocker.is_open:
            code, requirement = Reason.UNPROVED, blocker.residual or blocker.guard
        elif blocker.evidence == MEASURED or blocker.guard.startswith("ISA "):
            code = Reason.NO_KERNEL
        else:
            code = Reason.GUARD
        refusals.append(Refusal(implementation.name, requirement))
    return Choice(None, (), tuple(refusals), code)


def arguments_of(schema: Any, values: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
    """What a call of an operator passes, by argument name, defaults included."""
    arguments = {}
    for index, argument in enumerate(schema.arguments):
        default = argument.default_value if argument.has_default_value() else None
        arguments[argument.name] = values[index] if index < len(values) else named.get(argument.name, default)
    return arguments
