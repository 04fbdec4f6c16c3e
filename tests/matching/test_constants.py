"""Constants: what no input decides is evaluated, what one does is not."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fxrewrite.matching import Aliasing
from fxrewrite.matching.constants import Constants
from fxrewrite.matching.value import plain
from tests.support.graphs import returned, trace


def _value(function, *examples):
    gm = trace(function, *examples)
    constants, view = Constants(Aliasing(gm.graph)), plain(returned(gm))
    return constants.value(view) if constants.is_constant(view) else None


def _causal(x):
    n = x.shape[0]
    return torch.arange(n)[None, :] <= torch.arange(n)[:, None]


def test_a_mask_built_from_arange_is_evaluated():
    value = _value(_causal, torch.zeros(5))
    assert torch.equal(value, torch.ones(5, 5, dtype=torch.bool).tril())


def test_also_where_fake_tensors_surround():
    with FakeTensorMode():
        value = _value(_causal, torch.zeros(5))
    assert type(value) is torch.Tensor
    assert value.sum() == 15


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x > 0,
        lambda x: torch.arange(5) + x,
        lambda x: torch.rand(5),
        lambda x: torch.ones(1 << 14, 1 << 13),  # too large to look at
    ],
)
def test_not_what_depends_on_an_input_on_chance_or_is_large(function):
    assert _value(function, torch.zeros(5)) is None


def test_not_what_is_written_to():
    def masked(x):
        mask = torch.ones(5, 5)
        mask[:, 3].fill_(0.0)
        return mask * 1

    assert _value(masked, torch.zeros(5)) is None
