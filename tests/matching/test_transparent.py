"""What a match looks through: only what certainly changes nothing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fxrewrite.matching.transparent import float_cast, rearranged, regroups_leading, unchanged
from fxrewrite.matching.value import plain
from tests.support.graphs import returned, trace

X = torch.randn(2, 3, 4)
ONE = torch.randn(1, 3, 1)

SAME = {
    "contiguous": lambda x: x.contiguous(),
    "clone": lambda x: x.clone(),
    "detach": lambda x: x.detach(),
    "cast to its own dtype": lambda x: torch.ops.aten.to.dtype(x, torch.float32),
    "copying cast to its own dtype": lambda x: x.to(torch.float32, copy=True),
    "dropout switched off": lambda x: F.dropout(x, 0.5, training=False),
    "dropout of nothing": lambda x: F.dropout(x, 0.0, training=True),
    "view of the same shape": lambda x: x.view(2, 3, 4),
    "reshape of the same shape": lambda x: x.reshape(2, -1, 4),
    "expand of the same shape": lambda x: x.expand(2, 3, 4),
    "expand of nothing": lambda x: x.expand(-1, -1, -1),
    "whole slice": lambda x: x[:, :],
    "slice to the size": lambda x: torch.ops.aten.slice.Tensor(x, 1, 0, 3),
    "times 1": lambda x: x * 1.0,
}
OTHER = {
    "dropout": lambda x: F.dropout(x, 0.5, training=True),
    "cast": lambda x: x.to(torch.bfloat16),
    "view": lambda x: x.view(6, 4),
    "reshape that swaps sizes": lambda x: x.reshape(2, 4, 3),
    "slice": lambda x: x[:, 1:],
    "slice of another stride": lambda x: x[:, ::2],
    "times 2": lambda x: x * 2.0,
    "times a tensor": lambda x: x * torch.ones(()),
    "plus 0": lambda x: x + 0.5,
    "flip": lambda x: x.flip(0),
    "transpose": lambda x: x.mT,
}


@pytest.mark.parametrize("function", SAME.values(), ids=list(SAME))
def test_unchanged(function):
    view = plain(returned(trace(function, X)))
    for seen in (view, view.mT, view.pick([2, None, 0, 1])):
        inner = unchanged(seen) if view.node.op == "call_function" else seen
        assert inner is not None
        assert inner.dims == seen.dims
        assert inner.node.op == "placeholder"


@pytest.mark.parametrize("function", OTHER.values(), ids=list(OTHER))
def test_changed(function):
    assert unchanged(plain(returned(trace(function, X)))) is None


def test_expand_is_a_change_of_value():
    assert unchanged(plain(returned(trace(lambda x: x.expand(2, 3, 4), ONE)))) is None


def test_sizes_must_be_provably_the_same():
    gm = trace(lambda x, y: x.expand(y.shape[0], y.shape[1], y.shape[2]), X, X + 1, dynamic=True)
    view = plain(returned(gm))
    same = all(str(a) == str(b) for a, b in zip(view.shape, plain(view.node.args[0]).shape, strict=True))
    assert (unchanged(view) is not None) == same


@pytest.mark.parametrize(
    ("source", "target", "through"),
    [
        (torch.float32, torch.bfloat16, True),
        (torch.bfloat16, torch.float32, True),
        (torch.float16, torch.float64, True),
        (torch.float8_e4m3fn, torch.bfloat16, False),
        (torch.float32, torch.float8_e5m2, False),
        (torch.int32, torch.float32, False),
        (torch.float32, torch.int64, False),
        (torch.bool, torch.float32, False),
    ],
)
def test_float_casts(source, target, through):
    gm = trace(lambda x: x.to(target), torch.ones(2, 3).to(source))
    view = plain(returned(gm)).mT
    inner = float_cast(view)
    assert (inner is not None) == through
    if through:
        assert inner.dims == view.dims
        assert inner.node.op == "placeholder"


def test_a_cast_to_another_device_is_none():
    gm = trace(lambda x: x.to("meta", torch.bfloat16), X)
    assert float_cast(plain(returned(gm))) is None


def test_squeeze_of_all_is_not_a_rearrangement():
    """Without dims it depends on the sizes."""
    assert rearranged(plain(returned(trace(lambda x: x.squeeze(), ONE)))) is None


@pytest.mark.parametrize(
    ("shape", "regroup"),
    [
        ((6, 5, 4), True),
        ((1, 6, 5, 4), True),
        ((3, 2, 5, 4), True),
        ((2, 3, 20), False),
        ((2, 15, 4), False),
        ((6, 4, 5), False),
        ((120,), False),
    ],
)
def test_regroup_keeps_the_last_two_dims(shape, regroup):
    gm = trace(lambda x: x.reshape(shape), torch.randn(2, 3, 5, 4))
    out = returned(gm)
    assert regroups_leading(out, out.args[0]) == regroup
