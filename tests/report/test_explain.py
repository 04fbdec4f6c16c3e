"""One site in full."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from fxrewrite.errors import UsageError
from fxrewrite.guards.verdict import Judgement, Verdict
from fxrewrite.report import Capture, Reason, Report
from fxrewrite.report.explain import find, render_site
from fxrewrite.report.roofline import Ceilings, expected

from .samples import covered, site, transformer


def explained(report: Report, wanted: str) -> str:
    (found,) = find(report, wanted)
    return render_site(report, found, Console(file=StringIO(), width=100, color_system=None))


def test_everything_that_is_known_of_a_site():
    assert explained(transformer(57), "s4").splitlines() == [
        "s4  sdpa  matched  (rule Sdpa)",
        "  module    transformer_blocks.1.attn",
        "  source    diffusers/models/attention_processor.py:2345",
        "  operands  q, k, v: bf16[1,24,4608,128]",
        "  work      261 GFLOP on at least 113 MB: 2.3e+03 FLOP a byte (4*s0*24*4608**2*128)",
        "  like it   57 sites in all: transformer_blocks.[0-56].attn",
        "",
        "Captured code",
        "  diffusers/models/attention_processor.py:2344: k_t = k.mT",
        "      k_t = aten.transpose.int(k, -2, -1)",
        "  diffusers/models/attention_processor.py:2345: o = sdpa(q, k_t)",
        "      sdpa = aten.sdpa.default(q, k_t)",
        "      view = aten.view.default(sdpa, [1, -1])",
        "",
        "Guards",
        "  proved   head_dim % 32 == 0  static",
        "  unknown  batch == 1          checked at run time: s0 == 1",
        "",
        "Implementations, best first",
        "  refused  amx_bf16  this CPU has no AMX",
        "  chosen   avx2",
    ]


def test_a_rejected_site_starts_with_its_reason_and_the_refuted_guard_tells_the_numbers():
    refuted = Judgement("n % 16 == 0", Verdict.REFUTED, "static", "n = 63: 63 % 16 = 15")
    rejected = site(0, status="rejected", code=Reason.GUARD, detail=refuted.detail, judgements=(refuted,))
    text = explained(Report([Capture("g0", 3, [rejected])]), "s0")
    assert text.splitlines()[1] == "  reason  GUARD: n = 63: 63 % 16 = 15"
    assert "  refuted  n % 16 == 0  n = 63: 63 % 16 = 15" in text
    assert "Captured code" not in text
    assert "Implementations" not in text
    assert "like it" not in text


def test_a_site_and_its_parts_name_each_other():
    winner = site(0, kind="fp8_matmul", module="layer")
    report = Report([Capture("g0", 3, [winner, covered(1, winner), covered(2, winner)])])
    assert "  covers  linear s1, linear s2" in explained(report, "s0").splitlines()
    assert "  part of  s0" in explained(report, "s1").splitlines()


def test_the_time_to_expect_is_that_of_the_roofline():
    report = transformer(1)
    (found,) = find(report, "s0")
    text = render_site(report, found, Console(file=StringIO(), width=300, color_system=None), machine)
    assert (
        "  time      about 2.61 s at best, bound by computing. An estimate: 2.61 s of products at 100 GFLOP/s "
        "and 11.3 ms of memory at 10 GB/s, as measured on this CPU now, 2 threads"
    ) in text.splitlines()
    assert "  time" not in explained(report, "s0")  # without a machine


def test_no_time_is_made_up():
    uncounted = site(0, operands={"x": "bfloat16[1, 4]"})
    double = site(0, operands={"x": "float64[1, 4]"}, work=10, bytes=10)
    assert expected(uncounted, machine) == expected(double, machine) == ""
    few = site(0, operands={"weight": "float8_e4m3fn[4, 4]", "x": "float16[1, 4]"}, work=1000, bytes=10000)
    assert expected(few, machine).startswith("about 1 µs at best, bound by memory. An estimate: 0.01 µs of")


def machine(dtype):
    assert dtype in ("bfloat16", "float16")
    return Ceilings(dtype, peak=1e11, bandwidth=1e10, threads=2)


def test_a_module_path_gives_its_sites():
    assert [s.id for s in find(transformer(2), "transformer_blocks.1.attn")] == ["s4"]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("s99", "no site or module 's99': ids go from s0 to s8"),
        ("transformer_blocks.1.atn", "did you mean 'transformer_blocks.1.attn'?"),
        ("%", "ids go from s0 to s8"),
    ],
)
def test_an_unknown_site(wanted, said):
    with pytest.raises(UsageError) as error:
        find(transformer(2), wanted)
    assert said in str(error.value)


def test_nothing_to_explain():
    with pytest.raises(UsageError, match="no sites were found"):
        find(Report(), "g0.0")
