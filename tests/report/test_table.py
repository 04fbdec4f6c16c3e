"""The table: what it merges, how it wraps, and that it hides nothing."""

from __future__ import annotations

import re
from io import StringIO

import pytest
from rich.console import Console

from fxrewrite.report import Capture, Reason, Report, Site
from fxrewrite.report.table import render

from .samples import covered, site, transformer


def plain(width: int) -> Console:
    """A console that is no terminal."""
    return Console(file=StringIO(), width=width, color_system=None)


def flat(text: str) -> str:
    """The text with its wrapping undone."""
    return " ".join(text.split())


def column(text: str, header: str) -> str:
    """The letters of the column under ``header``, down to the end of the line."""
    lines = text.splitlines()
    start = next(line.index(header) for line in lines if header in line)
    return "".join(re.sub(r"\s", "", line[start:]) for line in lines)


def of(*sites: Site) -> Report:
    """A report of these sites."""
    return Report([Capture("forward", 10, list(sites))])


def test_summary_comes_first_with_the_rejected_by_reason():
    first = render(transformer(), console=plain(100)).splitlines()[0]
    assert first == "229 sites found: 171 matched, 58 rejected (57 ESCAPES, 1 GUARD)."


def test_the_share_of_the_work_follows():
    assert render(transformer(3), console=plain(200)).splitlines()[1] == (
        "Work of a call: 1.57 TFLOP, of which matched sites 50.0 %, rejected sites 0.0 %, neither 50.0 %."
    )
    assert "Work of a call" not in render(of(site(0)), console=plain(200))


def test_parts_of_a_matched_site_are_neither_counted_nor_shown():
    winner = site(0, kind="fp8_matmul", module="layer", work=10)
    refused = site(1, status="rejected", code=Reason.GUARD, work=10)
    report = Report([Capture("forward", 10, [winner, refused, covered(2, winner)], work=40)])
    text = render(report, console=plain(200))
    assert text.splitlines()[0] == "2 sites found: 1 matched, 1 rejected (1 GUARD)."
    assert "matched sites 25.0 %, rejected sites 25.0 %, neither 50.0 %" in text
    assert "OVERLAP" not in text
    assert report.summary() == "1 of 2 sites matched: fp8_matmul 1 of 1, linear 0 of 1"
    assert [s.id for s in report.sites] == ["s0", "s1", "s2"]  # each candidate is kept
    assert [s.id for s in report.rejected] == ["s1"]


@pytest.mark.parametrize("width", [80, 130])
@pytest.mark.parametrize("by", ["family", "module"])
def test_a_model_of_57_equal_blocks_prints_a_page(width, by):
    lines = render(transformer(57), by=by, console=plain(width)).splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= width


def test_equal_sites_are_one_row_with_their_count_and_layer_numbers():
    text = render(transformer(57), console=plain(130))
    assert re.search(r"^ +57  linear +transformer_blocks\.\[0-56\]\.attn\.to_q  ", text, re.MULTILINE)
    assert text.count("to_q") == 1


@pytest.mark.parametrize(
    ("modules", "shown"),
    [
        (["h.0.fc", "h.1.fc", "h.3.fc"], "h.[0-1,3].fc"),
        (["h.0.fc.2", "h.1.fc.2"], "h.[0-1].fc.2"),
        (["h.0.fc.0", "h.0.fc.1", "h.1.fc.0", "h.1.fc.1"], "h.[0-1].fc.[0-1]"),
        (["h.0.fc.0", "h.1.fc.1"], "h.*.fc.*"),
        ([f"h.{n}.fc" for n in (0, 2, 4, 6, 8)], "h.*.fc"),
        (["head", "head"], "head"),
        (["", ""], "(no submodule)"),
    ],
)
def test_layer_numbers_of_merged_modules(modules, shown):
    text = render(of(*(site(n, module=name) for n, name in enumerate(modules))), console=plain(100))
    row = next(line for line in text.splitlines() if line.endswith(shown))
    assert row.split()[0] == str(len(modules))


@pytest.mark.parametrize(
    "other",
    [
        {"kind": "sdpa"},
        {"status": "rejected", "code": Reason.DROPOUT},
        {"module": "h.0.gate"},
        {"operands": {"x": "f32[2, 3]"}},
        {"implementation": "portable"},
    ],
)
def test_sites_that_differ_have_rows_of_their_own(other):
    text = render(of(site(0, module="h.0.fc"), site(1, **{"module": "h.1.fc", **other})), console=plain(100))
    assert len(re.findall(r"^ +1  (?:linear|sdpa)", text, re.MULTILINE)) == 2


def test_reasons_that_differ_in_more_than_numbered_names_are_not_merged():
    rows = [site(n, status="rejected", code=Reason.GUARD, detail=f"scale = 0.{n}") for n in (5, 25)]
    text = render(of(*rows), console=plain(100))
    assert "GUARD: scale = 0.5\n" in text
    assert "GUARD: scale = 0.25" in text


def test_numbered_names_in_merged_reasons_are_starred_and_kept_in_a_single_one():
    text = flat(render(transformer(57), console=plain(80)))
    assert "ESCAPES: the product matmul_* is also read by add_*, outside the site" in text
    text = flat(render(transformer(1), console=plain(80)))
    assert "ESCAPES: the product matmul_0 is also read by add_0, outside the site" in text


def test_the_first_of_several_nodes_has_no_number_and_is_merged_all_the_same():
    rows = [
        site(n, status="rejected", code=Reason.ESCAPES, module=f"h.{n}", detail=f"{node} is returned")
        for n, node in enumerate(("softmax", "softmax_1", "softmax_2"))
    ]
    text = render(of(*rows), console=plain(100))
    assert "ESCAPES: softmax_* is returned" in text
    assert len(re.findall("ESCAPES:", text)) == 1
    assert "ESCAPES: softmax is returned" in render(of(rows[0]), console=plain(100))


@pytest.mark.parametrize("width", [30, 80, 110, 200])
def test_every_reason_is_visible_in_full(width):
    report = of(
        *(
            site(n, status="rejected", module=f"blocks.{n}.a_long_module_name.projection", code=code)
            for n, code in enumerate(Reason)
        )
    )
    text = render(report, console=plain(width))
    letters = column(text, "operands" if width >= 110 else "module")
    hidden = [code.name for code in Reason if f"{code.name}: {code.value}".replace(" ", "") not in letters]
    assert hidden == []
    assert "…" not in text


def test_long_words_are_folded_and_not_cut():
    path = "/srv/" + "deep/" * 30 + "model.py:12"
    report = of(site(0, module="m" * 150, location=path, operands={"x": "f32[2, 3]"}))
    for width in (80, 120):
        text = (
            render(report, console=plain(width))
            .replace("x: f32[2,3]", "")
            .replace("implementation: avx2", "")
        )
        assert "m" * 150 + path in column(text, "module")
        assert max(map(len, text.splitlines())) <= width


def test_sections_by_family_and_by_block():
    by_family = render(transformer(4), by="family", console=plain(100))
    assert "sdpa: 4 of 4 matched" in by_family
    assert "linear: 8 of 13 matched" in by_family
    by_module = render(transformer(4), by="module", console=plain(100))
    assert "transformer_blocks.*: 12 of 16 matched" in by_module
    assert "proj_out: 0 of 1 matched" in by_module


def test_places_are_short_and_lines_of_one_file_stand_together():
    sites = [
        site(n, module=f"h.{n}", location=f"/env/lib/site-packages/pkg/nn.py:{n // 2 + 7}") for n in range(4)
    ]
    assert " pkg/nn.py:7, 8\n" in render(of(*sites), console=plain(80))


def test_places_below_the_current_folder_are_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert " sub/model.py:3" in render(of(site(0, location=f"{tmp_path}/sub/model.py:3")), console=plain(80))
    assert " /other/model.py:3" in render(of(site(0, location="/other/model.py:3")), console=plain(80))


def test_operands_implementation_and_what_is_left_to_run_time():
    text = flat(render(transformer(2), console=plain(80)))
    assert "q, k, v: bf16[1,24,4608,128]" in text
    assert "implementation: avx2" in text
    assert "checked at run time: s0 == 1" in text
    assert "head_dim % 32" not in text


def test_dtypes_are_short_as_in_torch_own_dumps():
    dtypes = ["bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "int8"]
    operands = {name: f"{dtype}[2, s0]" for name, dtype in zip("abcdef", dtypes, strict=True)}
    text = flat(render(of(site(0, operands=operands)), console=plain(80)))
    shown = "a: bf16[2,s0]; b: f16[2,s0]; c: f32[2,s0]; d: f64[2,s0]; e: float8_e4m3fn[2,s0]; f: int8[2,s0]"
    assert shown in text


def test_implementations_that_do_not_apply_are_listed_once():
    text = render(transformer(57), console=plain(80))
    assert " - sdpa by amx_bf16: this CPU has no AMX (57 sites)\n" in text
    assert text.count("amx_bf16") == 1


def test_notes_and_effort_come_last():
    lines = render(transformer(1), console=plain(130)).splitlines()
    assert lines[-4:-2] == ["Notes:", " - experts: data-dependent control flow, runs eagerly"]
    assert lines[-1] == (
        "1 graph, 1234 nodes; captured in 2.2 s, analysed in 0.5 s. Dry run: nothing was executed or changed."
    )


def test_a_report_without_sites_still_prints_its_notes():
    text = render(Report(notes=["the model was not captured: it calls item()"]), console=plain(80))
    assert text.splitlines()[0] == "No sites found."
    assert " - the model was not captured: it calls item()" in text
    assert "count" not in text


def test_brackets_are_text_and_not_markup():
    text = render(of(site(0, module="h", operands={"x": "[bold]f32[red][/red]"})), console=plain(80))
    assert "x: [bold]f32[red][/red]" in text


def test_colours_on_a_terminal_only(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    green, red = "\x1b[32m", "\x1b[31m"
    terminal = render(transformer(1), console=Console(file=StringIO(), width=80, force_terminal=True))
    assert f"{green}matched" in terminal
    assert f"{red}rejected" in terminal
    assert "\x1b" not in render(transformer(1), console=Console(file=StringIO(), width=80))
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = render(transformer(1), console=Console(file=StringIO(), width=80, force_terminal=True))
    assert green not in terminal
    assert red not in terminal


def test_str_of_a_report_is_the_plain_table(monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = str(transformer(2))
    assert text == render(transformer(2), console=plain(90))
    assert "\x1b" not in text


def test_ascii_alone_is_printed():
    assert render(transformer(3), console=plain(80)).isascii()
