"""The report, as users hold it: of one model, or of several as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ..errors import UsageError
from .findings import Capture, Findings
from .site import Site


class Report(Findings):
    """What the pass found in a model; printed, it is a table. What it holds, ``Findings`` has."""

    def gather(self, group: Any = None) -> Report:
        """The reports of all ranks of a process group (default: torch.distributed's) as one. Each rank
        calls it, and gets it.

        Modules have the rank before them ("rank.0.layers.3.mlp"), so that sites which are equal on all
        ranks are one row of the table; ``.parts["rank.0"]`` is the report of one rank, ``.calls`` has the
        calls of all. Raises UsageError where there is no process group.
        """
        return _gathered(self, group)

    def __str__(self) -> str:
        from .table import render

        return render(self)


class JoinedReport(Report):
    """The reports of several models by name, as one.

    A model's name goes before its modules ("transformer.blocks.0.attn"), captures and site ids
    ("transformer:g0.3") and notes. It follows its parts: what they find later is in it.
    """

    def __init__(self, parts: Mapping[str, Report]) -> None:
        self.parts = dict(parts)

    @property
    def captures(self) -> list[Capture]:  # type: ignore[override]  # read from the parts
        """The captures of all parts."""
        return [_named(capture, name) for name, part in self.parts.items() for capture in part.captures]

    @property
    def notes(self) -> list[str]:  # type: ignore[override]
        """The notes of all parts."""
        return [f"{name}: {note}" for name, part in self.parts.items() for note in part.notes]

    @property
    def predicted(self) -> bool:  # type: ignore[override]
        """Does any part stem from a dry run?"""
        return any(part.predicted for part in self.parts.values())

    @property
    def calls(self) -> dict[str, dict[str, int]]:
        """Calls of this process since the first of the parts ran: each counts those of all."""
        found: dict[str, Counter[str]] = {}
        for part in self.parts.values():
            for op, calls in part.calls.items():
                found[op] = found.get(op, Counter()) | Counter(calls)
        return {op: dict(calls) for op, calls in found.items()}


class RanksReport(JoinedReport):
    """The reports of all ranks, as they were when they were gathered: "rank.0", "rank.1" ..."""

    @property
    def calls(self) -> dict[str, dict[str, int]]:
        """Calls of all ranks."""
        found: dict[str, Counter[str]] = {}
        for part in self.parts.values():
            for op, calls in part.calls.items():
                found.setdefault(op, Counter()).update(calls)
        return {op: dict(calls) for op, calls in found.items()}


def _gathered(report: Report, group: Any = None) -> RanksReport:
    """See ``Report.gather``."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        raise UsageError("Report.gather: torch.distributed has no process group: init_process_group() first")
    parts: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(parts, (report, report.calls), group)
    for part, calls in parts:
        part.counter = partial(dict, calls)  # its own would count the calls of this process
    return RanksReport({f"rank.{rank}": part for rank, (part, _) in enumerate(parts)})


def _named(capture: Capture, name: str) -> Capture:
    sites = [_site(site, name) for site in capture.sites]
    return replace(capture, name=f"{name}:{capture.name}", sites=sites)


def _site(site: Site, name: str) -> Site:
    module = f"{name}.{site.module}" if site.module else name
    covered_by = f"{name}:{site.covered_by}" if site.covered_by else ""
    return replace(site, id=f"{name}:{site.id}", module=module, covered_by=covered_by)
