"""Our own cases through fxrewrite.rewrite."""

import pytest
import torch

from tests.support.contract import ContractError
from tests.support.soundness import Soundness
from tests.support.subject import SUBJECTS

from . import attentions, behaviours, modes, products, structure, writes  # noqa: F401  (they register themselves)
from .case import BEHAVIOURS, VALUES


def rewrite(model, args=(), kwargs=None):
    import fxrewrite

    torch._dynamo.reset()
    return fxrewrite.rewrite(model, args, kwargs)


def seeded(case):
    def make(seed):
        torch.manual_seed(seed)
        model, args, kwargs = case.build()
        if seed:  # other values of the same size, for pooling
            args = tuple(
                a.roll(seed, -1) if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args
            )
        return model.eval(), args, kwargs

    return make


@pytest.mark.parametrize("case", VALUES.values(), ids=list(VALUES))
def test_values(case):
    check = Soundness(seeded(case), SUBJECTS["fxrewrite"])
    check.check()
    matched = {site.kind for site in check.report.sites if site.status == "matched"}
    assert not matched & set(case.never)


@pytest.mark.parametrize("check", BEHAVIOURS.values(), ids=list(BEHAVIOURS))
def test_behaviour(check):
    torch.manual_seed(0)
    check(rewrite)


@pytest.mark.parametrize("case", VALUES.values(), ids=list(VALUES))
def test_value_cases_hold_for_eager_itself(case):
    """The cases ask for nothing that the original model does not do."""
    Soundness(seeded(case), SUBJECTS["identity"]).check()


@pytest.mark.parametrize("check", BEHAVIOURS.values(), ids=list(BEHAVIOURS))
def test_behaviours_hold_for_a_plain_copy(check):
    """A "rewrite" that copies the model's structure on the same tensors passes every behaviour case."""

    def copied(model, args=(), kwargs=None):
        return shallow(model)

    check(copied)


def shallow(module):
    """The module's structure copied, its tensors shared."""
    new = module.__class__.__new__(module.__class__)
    new.__dict__.update(module.__dict__)
    for name in ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks"):
        new.__dict__[name] = module.__dict__[name].copy()
    new._modules = {key: shallow(child) for key, child in module._modules.items()}
    return new


WRONG = {
    "scale": lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v),
    "sign": lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.3),
}


@pytest.mark.parametrize(
    "name", ["negative_scale", "scale_differs_by_head", "inputs_mutated", "softmax_over_queries"]
)
@pytest.mark.parametrize("wrong", list(WRONG))
def test_value_cases_fail_on_a_naive_rewrite(name, wrong):
    def naive(model, args, kwargs):
        return (lambda *a, **k: WRONG[wrong](*a[:3])), None

    with pytest.raises(ContractError):
        Soundness(seeded(VALUES[name]), naive).check()


def _detached(model, args=(), kwargs=None):
    """A rewrite that freezes a copy of everything: what packing weights ahead without care does."""
    import copy

    return copy.deepcopy(model)


def _no_grad(model, args=(), kwargs=None):
    return torch.no_grad()(shallow(model).forward)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (_detached, "weights_updated_in_place_are_seen"),
        (_detached, "a_scale_tensor_is_not_baked_in"),
        (_no_grad, "gradients_are_those_of_eager"),
        (_no_grad, "an_input_that_needs_a_gradient_gets_it"),
    ],
)
def test_behaviour_cases_fail_on_a_careless_rewrite(wrong, name):
    with pytest.raises((AssertionError, RuntimeError, AttributeError)):
        BEHAVIOURS[name](wrong)
