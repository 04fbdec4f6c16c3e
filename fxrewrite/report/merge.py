"""Merging of equal sites: a model of 57 equal blocks has one row for each site of a block."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..guards.verdict import GUARD, Verdict
from .site import Site

_LAYER_IN_TEXT = re.compile(r"(?<=[A-Za-z])(_|\.)\d+\b")


@dataclass(frozen=True)
class Group:
    """Sites that differ only in their layer numbers.

    ``module`` and ``reason`` are shown as they are where all sites agree; else ``module`` has the
    numbers as "[0-56]", or "*" where they do not make a full grid, and ``reason`` has "*" for them.
    """

    sites: tuple[Site, ...]
    module: str
    reason: str

    @property
    def first(self) -> Site:
        """The first of the sites, for all that they have in common."""
        return self.sites[0]

    @property
    def locations(self) -> list[str]:
        """The distinct places in the source, in the order of the sites."""
        return list(dict.fromkeys(site.location for site in self.sites if site.location))

    @property
    def block(self) -> str:
        """The path down to the repeated block ("layers.*"), or to the first part where nothing repeats."""
        parts = _abstract(self.first.module).split(".")
        return ".".join(parts[: parts.index("*") + 1] if "*" in parts else parts[:1])


def merge(sites: Iterable[Site]) -> list[Group]:
    """Group equal sites, in the order in which each group's first site comes."""
    groups: dict[object, list[Site]] = {}
    for site in sites:
        groups.setdefault(key(site), []).append(site)
    return [Group(tuple(group), _module(group), _reason(group)) for group in groups.values()]


def residuals(site: Site) -> list[str]:
    """What remains to be checked, and by whom, guard by guard."""
    open_ = [f"checked at run time: {j.residual or j.guard}" for j in site.judgements if j.is_open]
    guards = (j.residual for j in site.judgements if j.verdict is Verdict.PROVED and j.evidence == GUARD)
    return list(dict.fromkeys([*open_, *(f"compiled for: {condition}" for condition in guards)]))


def key(site: Site) -> object:
    """What equal sites have in common: all but their layer numbers."""
    return (
        site.kind,
        site.status,
        _LAYER_IN_TEXT.sub("", site.reason),  # the first of several nodes has no number
        _abstract(site.module),
        tuple(site.operands.items()),
        site.implementation,
        tuple(residuals(site)),
    )


def _abstract(module: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in module.split("."))


def _abstract_text(text: str) -> str:
    return _LAYER_IN_TEXT.sub(r"\1*", text)


def _module(group: list[Site]) -> str:
    """The path of a group's modules, with the numbers that occur at each place."""
    paths = {site.module for site in group}
    columns = [set(column) for column in zip(*(path.split(".") for path in paths), strict=True)]
    if math.prod(map(len, columns)) != len(paths):
        return _abstract(group[0].module)
    return ".".join(next(iter(column)) if len(column) == 1 else _ranges(column) for column in columns)


def _ranges(parts: Iterable[str]) -> str:
    """Numbers as "[0-3,5]"; "*" where that takes more than four ranges."""
    runs: list[list[int]] = []
    for number in sorted(map(int, parts)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    if len(runs) > 4:
        return "*"
    return "[" + ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) + "]"


def _reason(group: list[Site]) -> str:
    reasons = {site.reason for site in group}
    return group[0].reason if len(reasons) == 1 else _abstract_text(group[-1].reason)
