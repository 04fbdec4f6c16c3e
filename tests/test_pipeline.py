"""Pipelines: their models are rewritten in place, and one report tells of all."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxrewrite


class Step(nn.Module):
    """A linear and an attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.inner(x)[:, None]
        return nn.functional.scaled_dot_product_attention(q, q, q)[:, 0]


class Pipeline:
    """What a diffusers pipeline looks like from outside."""

    def __init__(self, **parts: object) -> None:
        self.parts = parts

    @property
    def components(self) -> dict[str, object]:
        return dict(self.parts)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.parts["second"](self.parts["first"](x))  # type: ignore[operator]


@pytest.fixture
def pipeline() -> Pipeline:
    torch.manual_seed(0)
    first = Step(64).to(torch.bfloat16).eval()
    return Pipeline(first=first, second=Step(64).to(torch.bfloat16).eval(), tokenizer="words", shared=first)


X = torch.randn(1, 16, 64, dtype=torch.bfloat16)


def test_all_models_once_and_one_report_that_grows(pipeline):
    with torch.no_grad():
        before = pipeline(X)
        report = fxrewrite.rewrite(pipeline)
        assert isinstance(report, fxrewrite.Report)
        assert report.sites == []
        assert report.predicted
        after = pipeline(X)
    assert not report.predicted
    assert {site.module for site in report.sites} == {"first", "first.inner", "second", "second.inner"}
    assert {site.kind for site in report.sites} == {"linear", "sdpa"}
    assert len({site.id for site in report.sites}) == 4
    assert [c.name for c in report.captures] == ["first:g0", "second:g0"]
    torch.testing.assert_close(after, before, atol=2e-2, rtol=2e-2)
    assert str(report).startswith("4 sites found")


@pytest.mark.skipif(fxrewrite.ops.native_missing is not None, reason="no native library")
def test_calls_of_all_models_are_counted_once(pipeline, any_kernel):
    with torch.no_grad():
        report = fxrewrite.rewrite(pipeline)
        for _ in range(3):
            pipeline(X)
    assert {op: sum(calls.values()) for op, calls in report.calls.items()} == {"linear": 6, "sdpa": 6}


def test_gathering_needs_a_process_group():
    with pytest.raises(fxrewrite.UsageError, match="init_process_group"):
        fxrewrite.Report().gather()


def test_notes_carry_the_name(pipeline):
    report = fxrewrite.rewrite(pipeline)
    pipeline.components["second"].forward.report.note("a graph break")
    assert report.notes == ["second: a graph break"]


def test_options_reach_every_model(pipeline):
    with torch.no_grad():
        report = fxrewrite.rewrite(pipeline, rules=[])
        pipeline(X)
    assert report.sites == []
    with pytest.raises(fxrewrite.UsageError, match="unknown option"):
        fxrewrite.rewrite(pipeline, thenn="eager")


def test_exact_quality_is_the_original_and_recompiles_nothing(pipeline):
    with torch.no_grad():
        before = pipeline(X)
        report = fxrewrite.rewrite(pipeline)
        for level in ("lossless", "exact", "lossless", "exact"):
            with fxrewrite.quality(level):
                after = pipeline(X)
    assert torch.equal(after, before)
    assert [c.compilations for c in report.captures] == [1, 1]


def test_restore(pipeline):
    with torch.no_grad():
        before = pipeline(X)
        fxrewrite.rewrite(pipeline)
        assert fxrewrite.restore(pipeline) is pipeline
        assert torch.equal(pipeline(X), before)
    with pytest.raises(fxrewrite.UsageError, match="Pipeline is not rewritten: there is nothing to restore"):
        fxrewrite.restore(pipeline)


def test_twice(pipeline):
    fxrewrite.rewrite(pipeline)
    with pytest.raises(
        fxrewrite.UsageError, match=r"first is rewritten already: call fxrewrite.restore\(pipeline\)"
    ):
        fxrewrite.rewrite(pipeline)


def test_one_of_its_models_rewritten_alone_leaves_the_others(pipeline):
    fxrewrite.rewrite(pipeline.components["second"], inplace=True)
    with pytest.raises(fxrewrite.UsageError, match="second is rewritten already"):
        fxrewrite.rewrite(pipeline)
    assert "forward" not in pipeline.components["first"].__dict__


def test_without_models():
    with pytest.raises(fxrewrite.UsageError, match=r"Pipeline.components has no model"):
        fxrewrite.rewrite(Pipeline(tokenizer="words"))


def test_example_inputs_are_refused(pipeline):
    with pytest.raises(fxrewrite.UsageError, match="give no example inputs"):
        fxrewrite.rewrite(pipeline, (X,))
