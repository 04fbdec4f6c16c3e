"""Choice of the implementation for a call of one of our operators: the first of its list that qualifies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..guards.verdict import Judgement, Verdict
from ..ops.implementations import IMPLEMENTATIONS, MEASURED
from ..report import Reason, Refusal


@dataclass(frozen=True)
class Choice:
    """The chosen implementation with its requirements as judged, or None and the class of the last refusal.

    ``refusals`` are those before it, best first.
    """

    implementation: str | None
    judgements: tuple[Judgement, ...]
    refusals: tuple[Refusal, ...]
    code: Reason = Reason.GUARD


def choose(op: str, arguments: Mapping[str, Any], *, on_unknown: str = "dispatch") -> Choice:
    """Choose for a call of ``fxrewrite::op`` with all its ``arguments`` by name, defaults included.

    With ``on_unknown`` "reject" a requirement that is neither proved nor refuted refuses too.
    """
    refusals: list[Refusal] = []
    code = Reason.GUARD
    for implementation in IMPLEMENTATIONS[op]:
        judgements = implementation.judge(arguments)
        broken = next((j for j in judgements if j.verdict is Verdict.REFUTED), None)
        unknown = [j for j in judgements if j.verdict is Verdict.UNKNOWN]
        if broken is None and not (unknown and on_unknown == "reject"):
            return Choice(implementation.name, tuple(judgements), tuple(refusals))
        blocker = broken or unknown[0]
        refusals.append(Refusal(implementation.name, blocker.detail or blocker.residual or blocker.guard))
        if broken is None:
            code = Reason.UNPROVED
        elif broken.evidence == MEASURED or broken.guard.startswith("ISA "):
            code = Reason.NO_KERNEL
        else:
            code = Reason.GUARD
    return Choice(None, (), tuple(refusals), code)


def arguments_of(schema: Any, values: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
    """What a call of an operator passes, by argument name, defaults included."""
    arguments = {}
    for index, argument in enumerate(schema.arguments):
        default = argument.default_value if argument.has_default_value() else None
        arguments[argument.name] = values[index] if index < len(values) else named.get(argument.name, default)
    return arguments
