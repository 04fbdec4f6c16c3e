"""Repeated heads, in the spellings that models use, against real tensors."""

from __future__ import annotations

import pytest
import torch

from fxrewrite.matching.repeated import passed_between, unrepeated
from fxrewrite.matching.value import apply_dims, plain
from tests.support.graphs import returned, trace

HEADS = torch.arange(2 * 3 * 5 * 4.0).view(2, 3, 5, 4)  # [B, G, S, D]
TOKENS = HEADS.transpose(1, 2).contiguous()  # [B, S, G, D]

REPEATED = {
    "expanded and merged": (HEADS, lambda k: k[:, :, None].expand(2, 3, 4, 5, 4).reshape(2, 12, 5, 4)),
    "flattened": (HEADS, lambda k: k.unsqueeze(2).expand(-1, -1, 4, -1, -1).flatten(1, 2)),
    "contiguous between": (
        HEADS,
        lambda k: k[:, :, None].expand(2, 3, 4, 5, 4).contiguous().view(2, 12, 5, 4),
    ),
    "repeat": (HEADS, lambda k: k.unsqueeze(2).repeat(1, 1, 4, 1, 1).flatten(1, 2)),
    "repeat_interleave": (HEADS, lambda k: k.repeat_interleave(4, dim=1)),
    "repeat_interleave from the end": (HEADS, lambda k: k.repeat_interleave(4, dim=-3)),
    "before the transposition": (
        TOKENS,
        lambda k: k.unsqueeze(3).repeat(1, 1, 1, 4, 1).flatten(2, 3).transpose(1, 2),
    ),
    "before a permutation": (TOKENS, lambda k: k.repeat_interleave(4, dim=2).permute(0, 2, 1, 3)),
}
OTHERWISE = {
    "copies side by side, not interleaved": (HEADS, lambda k: k.repeat(1, 4, 1, 1)),
    "merged the other way": (HEADS, lambda k: k[:, None].expand(2, 4, 3, 5, 4).reshape(2, 12, 5, 4)),
    "along the tokens": (HEADS, lambda k: k.repeat_interleave(4, dim=2)),
    "different entries": (HEADS, lambda k: (k[:, :, None] + torch.arange(4.0).view(4, 1, 1)).flatten(1, 2)),
    "over all dims": (HEADS, lambda k: k.repeat_interleave(4).view(2, 3, 5, 16)),
    "not at all": (HEADS, lambda k: k * 2),
}


def _result(function, example):
    return plain(returned(trace(function, example)))


@pytest.mark.parametrize("name", REPEATED)
def test_the_repeated_value_is_found(name):
    example, function = REPEATED[name]
    view = _result(function, example)
    source = unrepeated(view, -3)
    assert source is not None
    assert source.node.op == "placeholder"
    found = apply_dims(example, source.dims)
    assert torch.equal(found.repeat_interleave(4, dim=1), function(example))
    passed = passed_between(view, source)
    assert view.node in passed
    assert source.node not in passed


@pytest.mark.parametrize("name", OTHERWISE)
def test_other_values_are_not(name):
    example, function = OTHERWISE[name]
    assert unrepeated(_result(function, example), -3) is None
