"""The models themselves: they build, are the same for the same seed, and hold the sites they claim."""

import pytest
import torch

from tests.support import contract, float64
from tests.support.modules import CallCounter
from tests.support.soundness import expected_error, run

from . import MODELS
from .params import each_model


@each_model
def test_builds_and_counts(model):
    built, args, kwargs = model.make()
    assert not built.training
    counter = CallCounter()
    with counter:
        out = run(built, args, kwargs)
    if not model.sites.opaque:
        assert (counter.linear, counter.fused) == (model.sites.linear, model.sites.fused)
    values = [v for _, v in contract.leaves(out) if isinstance(v, torch.Tensor)]
    assert values
    assert all(v.isfinite().all() for v in values)
    assert values[0].float().std() > 0.1, "degenerate output: errors would not be seen"

    again = run(*model.make())
    assert all(s.bit_equal for s in contract.score(again, out, out)), "two builds differ"

    exact = float64.run_float64(*model.make())
    limit = expected_error(*model.make()) / 3
    assert max(s.eager_relative for s in contract.score(out, out, exact)) < limit


def test_another_seed_gives_other_values():
    one, two = (run(*MODELS["attention-einsum"].make(seed)) for seed in (0, 1))
    assert (one - two).abs().max() > 0.1


def test_names_and_families():
    assert len(MODELS) >= 30
    for family in ("fused", "manual", "linear", "fp8", "linear_attention"):
        total = sum(getattr(m.sites, family) for m in MODELS.values())
        assert total >= 5, family
        assert any(m.quick and getattr(m.sites, family) for m in MODELS.values()), family


@pytest.mark.parametrize("wrong", ["reference", "eager"])
def test_a_wrong_model_would_be_seen(wrong):
    """The comparison above is sharp: one doubled weight is far outside of it."""
    model = MODELS["attention-einsum"]
    built, args, kwargs = model.make()
    with torch.no_grad():
        built.to_out.weight.mul_(1.001)
    out, exact = run(built, args, kwargs), float64.run_float64(*model.make())
    (score,) = contract.score(out, out, exact)
    assert score.eager_relative > 1e-4
