"""on_unknown="guard": what cannot be proved becomes a guard, and Dynamo compiles once for each side."""

from __future__ import annotations

import pytest
import torch

import fxrewrite
from fxrewrite import capture
from fxrewrite.guards import Verdict, divisible
from fxrewrite.matching import Rule
from tests.dynamic.models import BF16, Layer, exactly, is_as_exact_as_eager

pytestmark = pytest.mark.usefixtures("any_kernel")


class Rows32(Rule):
    """A linear with a number of rows that is a multiple of 32."""

    kind = "linear"

    def pattern(self, op, x, weight, bias):
        return op.linear(x, weight, bias)

    def guards(self, m):
        yield divisible(m["x"].shape[0], 32, "rows")

    def replace(self, op, m):
        return op.fxrewrite.linear(m["x"], m["weight"], m["bias"])


@pytest.fixture(autouse=True)
def _fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def compilations() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def _run(fast, model, rows):
    x = torch.randn(rows, 64, dtype=BF16)
    torch._dynamo.mark_dynamic(x, 0)
    with torch.no_grad():
        assert is_as_exact_as_eager(fast(x), model(x), exactly(model, x))


@pytest.mark.parametrize("door", ["rewrite", "compile"])
def test_one_compilation_for_each_side(door):
    model = Layer()
    if door == "rewrite":
        fast = fxrewrite.rewrite(model, on_unknown="guard", rules=[Rows32()])
    else:
        options = {"on_unknown": "guard", "rules": [Rows32()], "then": "eager"}
        fast = torch.compile(model, backend="fxrewrite", options=options)
    for rows, expected in ((64, 1), (32, 1), (96, 1), (33, 2), (7, 2), (50, 2), (128, 2)):
        _run(fast, model, rows)
        assert compilations() == expected, rows


def test_the_report_names_the_guard():
    model = Layer()
    fast = fxrewrite.rewrite(model, on_unknown="guard", rules=[Rows32()])
    _run(fast, model, 64)
    (site,) = fast.report.sites
    judgement = next(j for j in site.judgements if j.guard == "rows % 32 == 0")
    assert (site.matched, judgement.verdict, judgement.evidence) == (True, Verdict.PROVED, "guard")
    assert judgement.residual.endswith(" % 32 == 0")
    assert judgement.residual in str(fast.report)
    _run(fast, model, 33)
    (site,) = fast.report.sites
    assert site.reason.startswith("GUARD: not with these sizes: ")


def test_the_other_choices_on_the_same_condition():
    model = Layer()
    for on_unknown, matched, compiled in (("dispatch", True, 1), ("reject", False, 1)):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        fast = fxrewrite.rewrite(model, on_unknown=on_unknown, rules=[Rows32()])
        for rows in (64, 33, 7):
            _run(fast, model, rows)
        (site,) = fast.report.sites
        assert (site.matched, compilations()) == (matched, compiled)
        if matched:
            assert site.judgements[0].residual in str(fast.report)
        else:
            assert site.reason.startswith("UNPROVED: ")
            assert site.reason.endswith("% 32 == 0")


def test_the_dry_run_adds_no_guard(monkeypatch):
    """It asks with the example's sizes, and tells the same as the run."""
    model, x = Layer(), torch.randn(64, 64, dtype=BF16)
    torch._dynamo.mark_dynamic(x, 0)
    guards = []

    def watch(gm, *args, **kwargs):
        found = original(gm, *args, **kwargs)
        guards.append([str(g.expr) for g in capture.shape_env_of_graph(gm).guards])
        return found

    original = fxrewrite.backend.rewrite_graph
    monkeypatch.setattr(fxrewrite.backend, "rewrite_graph", watch)
    with torch.no_grad():
        report = fxrewrite.analyze(model, (x,), on_unknown="guard", rules=[Rows32()])
        fast = fxrewrite.rewrite(model, on_unknown="guard", rules=[Rows32()])
        fast(x)
    assert guards[0] == []
    assert len(guards[1]) == 1
    assert [s.judgements for s in report.sites] == [s.judgements for s in fast.report.sites]


@pytest.mark.parametrize("mark", [torch._dynamo.mark_dynamic, torch._dynamo.maybe_mark_dynamic])
def test_the_dry_run_sees_marked_sizes(mark):
    x = torch.randn(64, 64, dtype=BF16)
    mark(x, 0)
    with torch.no_grad():
        report = fxrewrite.analyze(Layer(), (x,), rules=[Rows32()])
    (site,) = report.sites
    assert site.judgements[0].verdict is Verdict.UNKNOWN


def test_not_after_export():
    program = torch.export.export(Layer(), (torch.randn(3, 64, dtype=BF16),))
    for use in (fxrewrite.rewrite, fxrewrite.analyze):
        with pytest.raises(fxrewrite.UsageError, match="checks no guards"):
            use(program, on_unknown="guard")


def test_an_unknown_name():
    with pytest.raises(fxrewrite.UsageError, match="'dispatch', 'guard', 'reject'"):
        fxrewrite.rewrite(Layer(), on_unknown="hope")
