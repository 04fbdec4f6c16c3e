"""Dynamic sizes: the survey of ``tests.zoo.dynamic`` on some models, and that it finds what is wrong."""

from __future__ import annotations

import pytest
import torch

import fxrewrite
from tests.dynamic.models import BF16, Decoder
from tests.models import MODELS

from . import dynamic, entries

NAMED = {"x": {0: "batch", 1: "tokens"}}


def decoder(seed=0):
    torch.manual_seed(seed)
    return Decoder().eval(), (torch.randn(3, 20, 64, dtype=BF16),), {}


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_one_compilation_as_eager_dynamo_needs_it():
    found = dynamic.run(decoder, NAMED)
    assert found["wrong"] == []
    assert set(found["ran"]) >= {*dynamic.SIZES, 1}
    assert found["compilations"] == found["by_dynamo"]


def test_other_numbers_are_found(monkeypatch):
    monkeypatch.setattr(fxrewrite, "rewrite", lambda model: lambda *args: model(*args) * 1.02)
    found = dynamic.run(decoder, NAMED)
    assert len(found["wrong"]) >= len(dynamic.SIZES)


def test_more_compilations_are_found(monkeypatch):
    def forgetful(model):
        def call(*args):
            torch._dynamo.reset()
            return torch.compile(model, backend="eager")(*args)

        return call

    monkeypatch.setattr(fxrewrite, "rewrite", forgetful)
    found = dynamic.run(decoder, NAMED)
    assert found["compilations"] > found["by_dynamo"]


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if model.quick][:2])
def test_own_models(name):
    found = dynamic.one(name, own=True, also_run=False)
    if found["status"] == "skip":
        pytest.skip(found["message"])
    assert found["status"] in ("dynamic", "weak"), found
    assert found["faults"] == found["notes"] == []
    assert found["sites"]
    assert sum(found["verdicts"].values()) > 0


# Of those whose dynamic dims the zoo names.
RUN = ("litela-pad", "gpt2-eager", "bloom-alibi-eager", "wan21-t2v")


@pytest.mark.slow
@pytest.mark.skipif(not entries.present(), reason=entries.MISSING)
def test_the_zoo():
    found = list(dynamic.survey([name for name in entries.names() if name in RUN], False, True))
    assert len(found) == len(RUN)
    for result in found:
        assert result["status"] in ("dynamic", "weak"), result
        assert result["faults"] == result["notes"] == [], result
        assert result["matched"], result
        ran = result["run"]
        assert len(ran["ran"]) >= 5, result
        assert ran["wrong"] == [], result
        assert ran["compilations"] <= ran["by_dynamo"], result
