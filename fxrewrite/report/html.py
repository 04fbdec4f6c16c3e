"""The report as one HTML page that needs nothing else: no network, no other file."""

from __future__ import annotations

import importlib.resources
import json
from html import escape

from .findings import Findings
from .words import coverage, summary


def render_html(report: Findings, title: str) -> str:
    """The page: the model's modules with their sites coloured, a search, and each site in detail.

    ``page.html`` beside this file is the page; the report goes into it as the JSON of
    ``Report.to_dict`` (schema.json).
    """
    page = (importlib.resources.files(__package__) / "page.html").read_text(encoding="utf-8")
    # "</script>" inside of a string would end the script
    data = json.dumps(report.to_dict()).replace("<", "\\u003c")
    for name, value in (
        ("TITLE", escape(title)),
        ("SUMMARY", escape(summary(report))),
        ("COVERAGE", escape(coverage(report))),
        ("REPORT", data),
    ):
        page = page.replace(f"{{{{{name}}}}}", value)
    return page
