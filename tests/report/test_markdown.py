"""Markdown for pull requests: what a renderer would take for markup is text."""

from __future__ import annotations

from fxrewrite.report import Capture, Reason, Report
from fxrewrite.report.markdown import render_markdown

from .samples import site, transformer


def test_summary_tables_and_folded_notes():
    lines = render_markdown(transformer(57)).splitlines()
    assert lines[0].startswith(
        "**229 sites found: 171 matched, 58 rejected (57 ESCAPES, 1 GUARD).** Work of a call"
    )
    assert "#### sdpa: 57 of 57 matched" in lines
    assert (
        "| ✅ | 57 | `transformer_blocks.[0-56].attn`<br>`diffusers/models/attention_processor.py:2345` | "
        "`q, k, v: bf16[1,24,4608,128]` | implementation: avx2<br>checked at run time: s0 == 1 |"
    ) in lines
    assert lines[-5] == "<details><summary>1 notes</summary>"
    assert lines[-3] == "- experts: data-dependent control flow, runs eagerly"


def test_sections_by_module():
    assert "#### transformer\\_blocks.\\*: 9 of 12 matched" in render_markdown(transformer(3), by="module")


def test_every_row_has_all_cells():
    awkward = site(
        0,
        status="rejected",
        module="a|b",
        code=Reason.GUARD,
        detail="x | y * <z>",
        operands={"x": "f32[2, 3]"},
    )
    table = [row for row in render_markdown(Report([Capture("g", 1, [awkward])])).splitlines() if "❌" in row]
    assert table == ["| ❌ | 1 | `a\\|b` | `x: f32[2,3]` | GUARD: x \\| y \\* \\<z\\> |"]


def test_no_sites():
    assert render_markdown(Report()) == "**No sites found.**"
