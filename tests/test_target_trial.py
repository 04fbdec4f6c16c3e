"""Inputs that are tried on a model: which are taken, what is mended, what is told of the rest."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fxrewrite.target.trial import Refusal, first_taken


def on_meta(*sizes: int) -> torch.Tensor:
    return torch.empty(sizes, device="meta")


def taken(layers: nn.Module, *candidates: dict, fixed: frozenset[str] = frozenset()):
    return first_taken(layers.to("meta"), candidates, fixed)


class Called(nn.Module):
    """Calls a function of its input ``x``, which may be followed by other inputs."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x, **others):
        return self.function(x, **others)


class Layer(nn.Module):
    def __init__(self, layer: nn.Module, before=lambda x: x) -> None:
        super().__init__()
        self.layer = layer
        self.before = before

    def forward(self, x):
        return self.layer(self.before(x))


def test_the_first_that_runs():
    found = taken(Layer(nn.Conv2d(4, 8, 1)), {"x": on_meta(1, 4, 8, 8, 8)}, {"x": on_meta(1, 4, 6, 6)})
    assert found["x"].shape == (1, 4, 6, 6)


def test_one_that_runs_comes_before_one_that_is_mended():
    found = taken(Layer(nn.Linear(8, 8)), {"x": on_meta(1, 4, 4)}, {"x": on_meta(1, 3, 8)})
    assert found["x"].shape == (1, 3, 8)


@pytest.mark.parametrize(
    ("layer", "given", "wanted"),
    [
        (Layer(nn.Linear(24, 8)), (1, 128, 16), (1, 128, 24)),
        (Layer(nn.Conv3d(3, 8, 1)), (1, 4, 5, 6, 6), (1, 3, 5, 6, 6)),
        (Layer(nn.Conv2d(6, 8, 1, groups=2)), (1, 4, 6, 6), (1, 6, 6, 6)),
        (Layer(nn.Linear(24, 8), lambda x: x.flatten(2).mT), (1, 4, 6, 6), (1, 24, 6, 6)),
        # patches of 2 x 2
        (
            Layer(nn.Linear(12, 8), lambda x: nn.functional.pixel_unshuffle(x, 2).flatten(2).mT),
            (1, 5, 6, 6),
            (1, 3, 6, 6),
        ),
    ],
    ids=["width", "channels", "groups", "channels_last", "patches"],
)
def test_a_width_is_mended(layer, given, wanted):
    assert taken(layer, {"x": on_meta(*given)})["x"].shape == wanted


def test_what_the_user_gave_is_not():
    refusal = taken(Layer(nn.Linear(24, 8)), {"x": on_meta(1, 128, 16)}, fixed=frozenset({"x"}))
    assert isinstance(refusal, Refusal)
    assert "[128, 16] X [24, 8]" in refusal.problem


def test_a_channel_is_not_a_fraction():
    layer = Layer(nn.Linear(13, 8), lambda x: nn.functional.pixel_unshuffle(x, 2).flatten(2).mT)
    assert isinstance(taken(layer, {"x": on_meta(1, 5, 6, 6)}), Refusal)


def autocast_on_the_device(x):
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        return x @ x


def on_the_cpu(x):
    return x + torch.ones(4, device="cpu")


@pytest.mark.parametrize("function", [autocast_on_the_device, on_the_cpu])
def test_a_device_that_the_meta_device_is_not(function):
    found = taken(Called(function), {"x": on_meta(4, 4)})
    assert found["x"].device.type == "meta"


@pytest.mark.parametrize("function", [lambda x: x * x.sum().item(), lambda x: x[x > 0].sum() + x.nonzero()])
def test_a_value_that_is_asked_for(function):
    def late(x, known=False):
        return function(x.sin() if known else x)

    refusal = taken(Called(late), {"x": on_meta(4)}, {"x": on_meta(4), "known": True})
    assert isinstance(refusal, Refusal)
    assert refusal.plausible["known"]  # it got furthest


def test_what_got_furthest_is_told():
    def function(x):
        _, _ = x.shape
        raise ValueError(f"no {x.sin().cos().shape}")

    refusal = taken(Called(function), {"x": on_meta(4)}, {"x": on_meta(3, 4)}, {"x": on_meta(1, 2, 3)})
    assert refusal.plausible is None
    assert refusal.problem.startswith("ValueError: no torch.Size([3, 4]) (at ")
    assert "test_target_trial.py" in refusal.problem


def test_no_candidate():
    assert taken(nn.Identity()) == Refusal("", None)


class Block(nn.Module):
    def __init__(self, width, runs):
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.runs = runs

    def forward(self, x, *, scale=1.0):
        self.runs.append(x.shape)
        return self.layer(x) * scale


class Stack(nn.Module):
    def __init__(self, widths, runs):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, runs) for width in widths)

    def forward(self, x, scales=(1.0, 1.0, 1.0)):
        for block, scale in zip(self.blocks, scales, strict=True):
            x = block(x, scale=scale)
        return x


@pytest.mark.parametrize(
    ("widths", "scales", "runs"),
    [
        ((4, 4, 4), (1, 1, 1), 1),
        ((4, 4, 4), (1, 2, 1), 2),
        ((4, 4, 4), (1, 1.0, True), 3),
        ((4, 4), (1, 1), 2),
    ],
)
def test_blocks_alike_run_once(widths, scales, runs):
    seen: list[torch.Size] = []
    model = Stack(widths, seen)
    taken(model, {"x": on_meta(2, 4), "scales": scales})
    assert len(seen) == runs
    assert not any("forward" in vars(block) for block in model.blocks)


def test_blocks_that_share_an_object_run_each():
    class Cache:
        def __rmul__(self, x):
            return x

    seen: list[torch.Size] = []
    taken(Stack((4, 4, 4), seen), {"x": on_meta(2, 4), "scales": [Cache()] * 3})
    assert len(seen) == 3


def test_blocks_on_other_shapes_run_again():
    seen: list[torch.Size] = []
    found = taken(Stack((4, 4, 4), seen), {"x": on_meta(2, 3)}, {"x": on_meta(5, 4)})
    assert found["x"].shape == (5, 4)
    assert seen == [(2, 3), (5, 4)]
