"""A rewritten model computes what the original computes, and the original stays as it was."""

import pytest
import torch

from tests.support import contract
from tests.support.contract import ContractError
from tests.support.soundness import Soundness, run, same, state
from tests.support.subject import SUBJECTS

from . import MODELS
from .params import each_model


@each_model
def test_contract(model):
    check = Soundness(model.make, SUBJECTS["fxrewrite"])
    check.check()
    assert check.reference == "good"


@each_model
def test_original_is_unchanged(model):
    import fxrewrite

    original, args, kwargs = model.make()
    before, forward = state(original), original.forward
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in original.modules()]
    with torch.no_grad():
        torch._dynamo.reset()
        fxrewrite.rewrite(original, args, kwargs)
    assert all(same(before[key], value) for key, value in state(original).items())
    assert original.forward == forward
    assert hooks == [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in original.modules()]
    out = run(original, args, kwargs)
    want = run(*model.make())
    assert all(s.bit_equal for s in contract.score(out, want, want))


@pytest.mark.parametrize("name", ["attention-matmul-div-sqrt", "fp8-weight-scaled", "mlp-spellings"])
def test_the_check_itself_fails_on_a_biased_linear(name):
    """A stand-in that adds 2 % of the output's size to every linear must not pass."""
    with pytest.raises(ContractError):
        Soundness(MODELS[name].make, SUBJECTS["biased"]).check()


@pytest.mark.parametrize("name", ["attention-matmul-div-sqrt", "fp8-weight-scaled", "mlp-spellings"])
@pytest.mark.parametrize("subject", ["identity", "other-order"])
def test_the_check_itself_passes_what_rounds_like_eager(name, subject):
    check = Soundness(MODELS[name].make, SUBJECTS[subject])
    check.check()
    assert check.ratio < 1.25


def _changes_a_weight(model, args, kwargs):
    with torch.no_grad():
        next(model.parameters()).flatten()[0] += 1e-3
    return model, None


def _changes_an_input(model, args, kwargs):
    args[0].flatten()[0] += 1e-3
    return model, None


def _leaves_training_mode(model, args, kwargs):
    model.train()
    return model, None


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        (_changes_a_weight, "was changed by rewrite"),
        (_changes_an_input, "was changed by rewrite"),
        (_leaves_training_mode, "training flags"),
    ],
)
def test_the_check_itself_sees_side_effects(subject, message):
    with pytest.raises(ContractError, match=message):
        Soundness(MODELS["attention-einsum"].make, subject).check()
