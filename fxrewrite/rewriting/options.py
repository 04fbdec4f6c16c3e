"""What a user may choose about a rewrite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from ..errors import UsageError, first_line
from ..matching import Rule

THEN = ("eager", "inductor")
ON_UNKNOWN = ("dispatch", "guard", "reject")


@dataclass(frozen=True)
class Options:
    """Options of every door.

    * ``then``: what runs the rewritten graph, "eager" or "inductor".
    * ``on_unknown``: what to do with a site of which a condition can be neither proved nor refuted:
      "dispatch" replaces it (the op checks at run time: one graph for all sizes), "guard" asks it of the
      sizes at hand (Dynamo compiles again for those of the other answer), "reject" leaves it.
    * ``rules``: the rules to use, in order; None is all of ``fxrewrite.patterns``.
    """

    then: str = "eager"
    on_unknown: str = "dispatch"
    rules: tuple[Rule, ...] | None = None

    def __post_init__(self) -> None:
        for name, allowed in (("then", THEN), ("on_unknown", ON_UNKNOWN)):
            if getattr(self, name) not in allowed:
                raise UsageError(
                    f"{name}={getattr(self, name)!r}: expected one of {', '.join(map(repr, allowed))}"
                )
        for rule in self.rules or ():
            if not isinstance(rule, Rule):
                raise UsageError(f"rules: {rule!r} is not a Rule instance (write MyRule(), not MyRule)")
            _check_rule(rule)


def _check_rule(rule: Rule) -> None:
    """Raise UsageError where the rule lacks a part, or its pattern cannot be built."""
    given = (hasattr(rule, "kind"), hasattr(rule, "pattern"), type(rule).replace is not Rule.replace)
    for part, there in zip(("kind", "pattern()", "replace()"), given, strict=True):
        if not there:
            raise UsageError(f"rules: {rule.name} has no {part}: a rule needs kind, pattern() and replace()")
    try:
        rule.roots  # noqa: B018  # which builds the pattern
    except Exception as error:
        raise UsageError(
            f"rules: the pattern of {rule.name} cannot be built: {type(error).__name__}: {first_line(error)}"
        ) from error


def make_options(given: dict[str, Any], **defaults: Any) -> Options:
    """Options from keyword arguments or a backend's ``options``; raises UsageError on unknown names."""
    known = [f.name for f in fields(Options)]
    for name in given:
        if name not in known:
            raise UsageError(f"unknown option {name!r}: expected one of {', '.join(known)}")
    merged = {**defaults, **given}
    rules: Sequence[Rule] | None = merged.get("rules")
    if rules is not None:
        if isinstance(rules, (str, Rule)) or not hasattr(rules, "__iter__"):
            raise UsageError("rules: expected a sequence of Rule instances")
        merged["rules"] = tuple(rules)
    return Options(**merged)
