"""Exported programs: what they do not check when they run is an assumption, and the operator still checks it."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim

import fxrewrite
from fxrewrite import capture
from fxrewrite.guards import Verdict, at_least, at_most, divisible
from fxrewrite.matching import Rule
from tests.dynamic.models import BF16, Decoder, Layer, exactly, is_as_exact_as_eager

pytestmark = pytest.mark.usefixtures("any_kernel")


def rule(guard):
    class Guarded(Rule):
        kind = "linear"

        def pattern(self, op, x, weight, bias):
            return op.linear(x, weight, bias)

        def guards(self, m):
            yield guard(m["x"].shape[0])

        def replace(self, op, m):
            return op.fxrewrite.linear(m["x"], m["weight"], m["bias"])

    return Guarded()


def judged(dim, guard, rows=64, **options):
    """The judgement of ``guard`` on the number of rows, the program, and its site."""
    program = torch.export.export(
        Layer(), (torch.randn(rows, 64, dtype=BF16),), dynamic_shapes={"x": {0: dim}}
    )
    rewritten = fxrewrite.rewrite(program, rules=[rule(guard)], **options)
    (site,) = rewritten.report.sites
    return site.judgements[0], rewritten, site


def multiple_of_32(rows):
    return divisible(rows, 32, "rows")


def test_a_derived_size_is_an_assumption():
    judgement, program, site = judged(32 * Dim("k"), multiple_of_32)
    assert (judgement.verdict, judgement.evidence) == (Verdict.PROVED, "assumption")
    assert f"checked at run time: {judgement.residual}" in str(program.report)
    assert site.matched
    module = program.module()
    for rows in (64, 96, 33):  # the program takes 33 rows: that it was exported with multiples is not checked
        x = torch.randn(rows, 64, dtype=BF16)
        weight, bias = (program.state_dict[f"linear.{n}"] for n in ("weight", "bias"))
        layer = Layer()
        layer.load_state_dict({"linear.weight": weight, "linear.bias": bias})
        assert is_as_exact_as_eager(module(x), layer(x), exactly(layer, x))


def test_an_assumption_is_no_proof():
    _, _, site = judged(32 * Dim("k"), multiple_of_32, on_unknown="reject")
    assert site.reason.startswith("UNPROVED: ")


@pytest.mark.parametrize(
    ("dim", "guard", "verdict", "evidence"),
    [
        (Dim("n", max=100), lambda n: at_most(n, 100, "n"), "proved", "range"),
        (Dim("n", max=100), lambda n: at_most(n, 99, "n"), "unknown", ""),
        (Dim("n", min=4), lambda n: at_least(n, 4, "n"), "proved", "range"),
        (Dim("n"), lambda n: at_least(n, 1, "n"), "proved", "assumption"),  # 0 rows run: nothing checks it
        (Dim("n", min=2), lambda n: at_least(n, 1, "n"), "proved", "assumption"),
        (Dim("n"), multiple_of_32, "unknown", ""),
        (Dim.AUTO, lambda n: at_least(n, 2, "n"), "proved", "assumption"),
    ],
)
def test_ranges(dim, guard, verdict, evidence):
    judgement, program, _ = judged(dim, guard)
    assert (judgement.verdict.value, judgement.evidence) == (verdict, evidence)
    if evidence == "assumption":
        assert program.module()(torch.randn(0, 64, dtype=BF16)).shape == (0, 64)
    if evidence == "range":  # what is proved, the program checks
        outside = 101 if "100" in judgement.guard else 3
        with pytest.raises(AssertionError, match="Guard failed"):
            program.module()(torch.randn(outside, 64, dtype=BF16))


def test_all_sizes_are_right():
    model = Decoder()
    dims = {"x": {0: Dim("batch", min=0), 1: Dim("tokens", min=0, max=200)}}
    program = torch.export.export(model, (torch.randn(3, 20, 64, dtype=BF16),), dynamic_shapes=dims)
    module = fxrewrite.rewrite(program).module()
    for batch, tokens in ((3, 20), (2, 64), (5, 33), (1, 7), (4, 1), (1, 1), (0, 5), (2, 0)):
        x = torch.randn(batch, tokens, 64, dtype=BF16)
        assert is_as_exact_as_eager(module(x), model(x), exactly(model, x)), (batch, tokens)


def test_the_program_is_left_as_it_is():
    dims = {"x": {0: Dim("batch"), 1: Dim("tokens")}}
    program = torch.export.export(Decoder(), (torch.randn(3, 20, 64, dtype=BF16),), dynamic_shapes=dims)

    def facts():
        environment = capture.shape_env_of_graph(program.graph_module)
        return capture.facts_version(environment), [str(g.expr) for g in environment.guards], str(program)

    before = facts()
    report = fxrewrite.analyze(program)
    assert report.sites
    assert facts() == before


def test_a_mask_is_judged_by_what_the_program_checks():
    """All of it is seen from 2 tokens on; the program, exported with a few, runs with 1 too."""

    class Masked(torch.nn.Module):
        def forward(self, q, k):
            rows = q.shape[2]
            seen = (torch.arange(2) < rows).expand(rows, 2)
            return torch.nn.functional.scaled_dot_product_attention(q, k, k, attn_mask=seen)

    model, k = Masked(), torch.randn(2, 2, 2, 32)
    dims = {"q": {2: Dim("rows", min=0)}, "k": None}
    program = torch.export.export(model, (torch.randn(2, 2, 5, 32), k), dynamic_shapes=dims)
    rewritten = fxrewrite.rewrite(program)
    assert [site.matched for site in rewritten.report.sites] == [True]
    for rows in (5, 2, 1):
        q = torch.randn(2, 2, rows, 32)
        torch.testing.assert_close(rewritten.module()(q, k), model(q, k))
