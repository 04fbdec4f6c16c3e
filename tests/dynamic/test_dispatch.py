"""on_unknown="dispatch": one compilation serves all sizes, on both sides of what could not be proved."""

from __future__ import annotations

import itertools

import pytest
import torch

import fxrewrite
from fxrewrite.guards import at_least, at_most
from fxrewrite.matching import Rule
from tests.dynamic.models import (
    BF16,
    Decoder,
    Layer,
    LinearAttention,
    Written,
    exactly,
    is_as_exact_as_eager,
)

pytestmark = pytest.mark.usefixtures("any_kernel")


def compilations() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.fixture(autouse=True)
def _fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def decoder_inputs(batch, tokens):
    return (torch.randn(batch, tokens, 64, dtype=BF16),)


def attention_inputs(batch, tokens):
    return tuple(torch.randn(batch, 2, tokens, 32, dtype=BF16) for _ in range(3))


def linear_attention_inputs(batch, tokens):
    return tuple(torch.randn(batch, 2, 16, tokens, dtype=BF16) for _ in range(3))


CASES = {
    "decoder": (Decoder, decoder_inputs, (0, 1)),
    "written": (Written, attention_inputs, (0, 2)),
    "linear attention": (LinearAttention, linear_attention_inputs, (0, 3)),
    "layer": (Layer, decoder_inputs, (0, 1)),
}
SIZES = [(2, 7), (3, 33), (5, 64), (9, 2), (2, 100), (4, 31)]
EDGES = [(1, 5), (0, 5), (2, 1), (2, 0), (1, 1), (0, 0)]


def _check(fast, model, inputs):
    eager, exact = model(*inputs), exactly(model, *inputs)
    assert is_as_exact_as_eager(fast(*inputs), eager, exact), [tuple(t.shape) for t in inputs]


UNBACKED = torch._dynamo.decorators.mark_unbacked
MARKS = [(name, torch._dynamo.mark_dynamic) for name in CASES]
MARKS += [(name, UNBACKED) for name in CASES if name != "decoder"]  # for which Dynamo itself needs more


@pytest.mark.parametrize(("name", "mark"), MARKS)
def test_one_compilation_serves_all_sizes(name, mark):
    make, inputs_of, dims = CASES[name]
    model = make()
    fast = fxrewrite.rewrite(model)
    with torch.no_grad():
        for size in SIZES + ([(1, 5), (2, 1), (1, 1)] if mark is UNBACKED else []):
            inputs = inputs_of(*size)
            for tensor in inputs:
                for dim in dims:
                    mark(tensor, dim)
            _check(fast, model, inputs)
    assert compilations() == 1, fast.report
    assert fast.report.matched, fast.report


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("mark", [None, UNBACKED])
def test_no_more_compilations_than_dynamo_needs_itself(name, mark):
    """Sizes 0 and 1 are constants to Dynamo, unless it is told that it knows no size: then 0 may still be."""
    make, inputs_of, dims = CASES[name]
    model = make()
    counts = []
    for function in (torch.compile(make(), backend="eager"), fxrewrite.rewrite(model)):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        torch.manual_seed(1)
        with torch.no_grad():
            for size in SIZES + EDGES:
                inputs = inputs_of(*size)
                for tensor, dim in itertools.product(inputs if mark else (), dims):
                    mark(tensor, dim)
                if counts:
                    _check(function, model, inputs)
                else:
                    function(*inputs)
        counts.append(compilations())
    assert counts[1] == counts[0]


class FewRows(Rule):
    """A linear on 1 to 9 rows."""

    kind = "linear"

    def pattern(self, op, x, weight, bias):
        return op.linear(x, weight, bias)

    def guards(self, m):
        yield at_least(m["x"].shape[0], 1, "rows")
        yield at_most(m["x"].shape[0], 9, "rows")

    def replace(self, op, m):
        return op.fxrewrite.linear(m["x"], m["weight"], m["bias"])


def test_bounds_that_a_user_marks_are_facts():
    model = Layer()
    for bounds, matched in (({}, False), ({"min": 4, "max": 9}, True), ({"min": 4, "max": 10}, False)):
        torch._dynamo.reset()
        fast = fxrewrite.rewrite(model, on_unknown="reject", rules=[FewRows()])
        for rows in (6, 8):
            x = torch.randn(rows, 64, dtype=BF16)
            torch._dynamo.mark_dynamic(x, 0, **bounds)
            with torch.no_grad():
                _check(fast, model, (x,))
        (site,) = fast.report.sites
        assert site.matched is matched, (bounds, site)
        if matched:
            assert {j.evidence for j in site.judgements[:2]} == {"range"}


def test_checks_of_the_model_are_facts():
    class Checked(Layer):
        def forward(self, x):
            torch._check(x.shape[0] <= 9)
            return self.linear(x)

    model = Checked()
    x = torch.randn(9, 64, dtype=BF16)
    torch._dynamo.mark_dynamic(x, 0)
    fast = fxrewrite.rewrite(model, on_unknown="reject", rules=[FewRows()])
    with torch.no_grad():
        _check(fast, model, (x,))
        _check(fast, model, (x[:2].clone(),))
        assert fast.report.matched, fast.report
        with pytest.raises(RuntimeError):
            fast(torch.randn(10, 64, dtype=BF16))


def test_a_size_that_only_the_run_knows():
    class Chosen(Layer):
        def forward(self, x, kept):
            n = kept.sum().item()
            torch._check(n >= 0)
            torch._check(n <= x.shape[0])
            return self.linear(x[:n])

    model, x = Chosen(), torch.randn(12, 64, dtype=BF16)
    with torch._dynamo.config.patch(capture_scalar_outputs=True), torch.no_grad():
        for on_unknown in ("dispatch", "guard"):
            torch._dynamo.reset()
            torch._dynamo.utils.counters.clear()
            fast = fxrewrite.rewrite(model, on_unknown=on_unknown, rules=[FewRows()])
            for n in (5, 12, 0, 1, 7, 9):
                kept = torch.arange(20) < n
                got, eager = fast(x, kept), model(x, kept)
                assert is_as_exact_as_eager(got, eager, exactly(model.linear, x[:n]))
            assert compilations() == 1
            assert fast.report.matched, fast.report
            with pytest.raises(RuntimeError):  # the model's own check is still made
                fast(x, torch.arange(20) < 13)
