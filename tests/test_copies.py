"""Copies of modules whose functions close over them."""

from __future__ import annotations

import copy
import functools

import torch
from torch import nn

from fxrewrite.copies import deep_copy


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return x * self.weight


def wrapped(layer: Layer) -> Layer:
    own = layer.forward

    def forward(x):
        return own(x) + 1

    layer.forward = forward
    return layer


def doubled(layer: Layer) -> list[float]:
    with torch.no_grad():
        layer.weight.mul_(2)
    return layer(torch.ones(2)).tolist()


def test_a_closure_over_a_module_follows_the_copy():
    layer = wrapped(Layer())
    copied = deep_copy(layer, {})
    assert doubled(copied) == [3.0, 3.0]
    assert layer(torch.ones(2)).tolist() == [2.0, 2.0]
    # copy alone leaves the function as it is
    assert doubled(copy.deepcopy(layer)) == [2.0, 2.0]


def test_in_partials_methods_and_nested_closures():
    layer = wrapped(wrapped(Layer()))
    layer.forward = functools.partial(layer.forward)
    model = nn.Sequential(layer, Layer())
    copied = deep_copy(model, {})
    with torch.no_grad():
        copied[0].weight.zero_()
    assert copied(torch.ones(2)).tolist() == [2.0, 2.0]
    assert model(torch.ones(2)).tolist() == [3.0, 3.0]


def test_other_functions_are_shared():
    layer = Layer()
    factor = torch.ones(2)
    layer.note = lambda: factor
    assert deep_copy(layer, {}).note is layer.note


def test_a_cell_that_is_not_filled_yet():
    layer = wrapped(Layer())

    def later():
        return nothing, layer

    layer.later = later
    assert deep_copy(layer, {}).later is not layer.later
    if layer is None:
        nothing = 0
