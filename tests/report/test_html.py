"""The page: what is in it, and that a browser opens it without a complaint."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fxrewrite.report import Capture, Reason, Report
from fxrewrite.report.html import render_html

from .samples import covered, site, transformer

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def embedded(page: str) -> object:
    found = re.search(r'<script id="report" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_the_report_is_in_the_page():
    report = transformer(3)
    page = render_html(report, "FLUX <1>")
    assert embedded(page) == report.to_dict()
    assert "<h1>FLUX &lt;1&gt;</h1>" in page
    assert "13 sites found: 9 matched" in page
    assert "Work of a call: 1.57 TFLOP" in page
    assert "{{" not in page


def test_text_of_the_report_cannot_end_the_script():
    evil = site(0, status="rejected", code=Reason.GUARD, detail="</script><script>alert(1)</script>")
    report = Report([Capture("g0", 1, [evil])])
    page = render_html(report, "x")
    assert page.count("</script>") == 2
    assert embedded(page) == report.to_dict()


def test_it_needs_no_network():
    page = render_html(transformer(1), "x")
    assert not re.search(r"https?://|@import|url\(", page)


def opened(page: str, folder: Path, fragment: str = "") -> tuple[str, str]:
    """The page's content after its script has run, and what it logged."""
    file = folder / "report.html"
    file.write_text(page, encoding="utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile"]
    command += [
        "--virtual-time-budget=3000",
        "--enable-logging=stderr",
        "--dump-dom",
        f"file://{file}{fragment}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_a_browser_opens_it(tmp_path):
    content, complaints = opened(render_html(transformer(57), "FLUX"), tmp_path)
    assert complaints == ""
    assert "229 of 229 sites shown" in content
    assert 'title="transformer_blocks"' in content
    content, complaints = opened(render_html(transformer(57), "FLUX"), tmp_path, "#s4")
    assert complaints == ""
    for part in ("matched</span> sdpa ", "aten.transpose.int(k, -2, -1)", "checked at run time: s0 == 1"):
        assert part in content


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_parts_of_a_site_are_found_at_it_alone(tmp_path):
    winner = site(0, kind="fp8_matmul", module="layer")
    page = render_html(Report([Capture("g0", 1, [winner, covered(1, winner)])]), "x")
    content, complaints = opened(page, tmp_path, "#s0")
    assert complaints == ""
    assert "1 of 1 sites shown" in content
    assert '<a href="#s1"><code>s1</code></a>' in content
    content, complaints = opened(page, tmp_path, "#s1")
    assert complaints == ""
    assert "OVERLAP: part of the fp8_matmul site" in content
    assert '<a href="#s0"><code>s0</code></a>' in content


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_the_check_sees_a_complaint(tmp_path):
    _, complaints = opened(render_html(transformer(1), "x").replace("draw();\n", "absent();\n"), tmp_path)
    assert "absent is not defined" in complaints
