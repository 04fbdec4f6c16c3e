"""One report of several models: the components of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .report import Capture, Report
from .site import Site


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


def joined(parts: Mapping[str, Report]) -> Report:
    """One report of those of several models, by name."""
    return JoinedReport(parts)


def _named(capture: Capture, name: str) -> Capture:
    sites = [_site(site, name) for site in capture.sites]
    return replace(capture, name=f"{name}:{capture.name}", sites=sites)


def _site(site: Site, name: str) -> Site:
    module = f"{name}.{site.module}" if site.module else name
    covered_by = f"{name}:{site.covered_by}" if site.covered_by else ""
    return replace(site, id=f"{name}:{site.id}", module=module, covered_by=covered_by)
