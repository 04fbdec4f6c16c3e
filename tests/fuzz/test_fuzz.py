"""Random small modules: rewritten against eager, with float64 as the oracle. None may be wrong or crash.

A failure names its seed: ``tests.fuzz.run.check(seed)`` repeats it.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from tests.support.soundness import same

from .run import FAMILIES, Wrong, check, module

QUICK, MANY, PIECE = 60, 2000, 125
KINDS = {"sdpa", "linear", "fp8_matmul", "linear_attention"}


def run(seeds) -> tuple[Counter[str], list[str]]:
    sites: Counter[str] = Counter()
    wrong = []
    for seed in seeds:
        try:
            sites += check(seed)
        except Wrong as error:
            wrong.append(str(error))
    return sites, wrong


def test_some():
    sites, wrong = run(range(QUICK))
    assert not wrong, "\n".join(wrong)
    assert {kind for kind in KINDS if sites[f"{kind} matched"]} == KINDS
    assert sites["refused by eager"] < QUICK / 20


@pytest.mark.slow
@pytest.mark.parametrize("first", range(QUICK, QUICK + MANY, PIECE))
def test_many(first):
    sites, wrong = run(range(first, first + PIECE))
    assert not wrong, f"{len(wrong)} of {PIECE}:\n" + "\n".join(wrong)
    assert sites["coarse"] <= 2


def test_a_seed_gives_the_same_module():
    for seed in range(20):
        one, two = module(seed), module(seed)
        assert one.told == two.told
        for a, b in zip(one.inputs.draw(seed), two.inputs.draw(seed), strict=True):
            assert a.stride() == b.stride()
            assert same(a, b)


def test_seeds_reach_every_family():
    assert {module(seed).told.split(",")[0] for seed in range(100)} == {f"family={name}" for name in FAMILIES}


@pytest.mark.parametrize("name", ["sdpa", "linear", "fp8_linear", "relu_linear_attention"])
def test_a_wrong_operator_is_found(name, monkeypatch):
    """An operator whose result is off by 2 %, or whose first row is, does not pass."""
    from fxrewrite.rewriting.builder import Builder

    call = Builder.call

    def off(self, target, *args, **kwargs):
        node = call(self, target, *args, **kwargs)
        ours = str(target) == f"fxrewrite.{name}.default"
        return call(self, torch.ops.aten.mul.Tensor, node, 1.02) if ours else node

    monkeypatch.setattr(Builder, "call", off)
    assert any(run([seed])[1] for seed in range(60))
