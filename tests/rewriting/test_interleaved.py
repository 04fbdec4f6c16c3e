"""Tensors written by even and odd columns: made functional, bit-equal to eager, and only where nobody else looks."""

from __future__ import annotations

import pytest
import torch

from fxrewrite.rewriting.functional import simplify
from tests.support.graphs import text, trace

X, W = torch.randn(3, 5, 8), torch.randn(8, 8)


def filled(x, w):
    out = torch.empty_like(x)
    out[..., 0::2] = x[..., 1::2] * 2
    out[..., 1::2] = x[..., ::2] + 1
    return out @ w


def odd_first(x, w):
    out = torch.empty(x.shape)
    out[..., 1::2] = x[..., ::2]
    out[..., ::2] = x[..., 1::2].sin()
    return out.transpose(0, 1) @ w


def narrowed(x, w):
    out = torch.empty_like(x, dtype=torch.bfloat16)
    out[..., 0::2] = x[..., 1::2] * 2
    out[..., 1::2] = x[..., ::2].to(torch.bfloat16)
    return out.float() @ w


def broadcast(x, w):
    out = torch.empty_like(x)
    out[..., 0::2] = x[..., :1]
    out[..., 1::2] = x[..., ::2]
    return out @ w


def read_again(x, w):
    out = torch.empty_like(x)
    out[..., 0::2] = x[..., 1::2]
    out[..., 1::2] = x[..., ::2]
    return out @ w, out.sum(), out


@pytest.mark.parametrize("function", [filled, odd_first, narrowed, broadcast, read_again])
def test_made_functional(function):
    gm = trace(function, X, W)
    simplify(gm)
    assert "copy_" not in text(gm)
    assert "empty" not in text(gm)
    want, out = function(X, W), gm(X, W)
    for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (out, want)), strict=True):
        assert torch.equal(a, b)
        assert a.stride() == b.stride()


def read_between(x, w):
    out = torch.zeros_like(x)
    out[..., 0::2] = x[..., 1::2]
    total = out.sum()
    out[..., 1::2] = x[..., ::2]
    return out @ w + total


def written_thrice(x, w):
    out = torch.empty_like(x)
    out[..., 0::2] = x[..., 1::2]
    out[..., 1::2] = x[..., ::2]
    out[0] = 1.0
    return out @ w


def written_in_part(x, w):
    out = torch.ones_like(x)
    out[..., 0::2] = x[..., 1::2]
    return out @ w


def the_same_columns(x, w):
    out = torch.ones_like(x)
    out[..., 0::2] = x[..., 1::2]
    out[..., 0::2] = x[..., ::2]
    return out @ w


def rows(x, w):
    out = torch.ones(4, 8)
    out[0::2] = x[0, :2]
    out[1::2] = x[1, :2]
    return out @ w


def other_order(x, w):
    out = torch.empty(5, 3, 8).transpose(0, 1)
    out[..., 0::2] = x[..., 1::2]
    out[..., 1::2] = x[..., ::2]
    return out @ w


def written_result_is_used(x, w):
    out = torch.empty_like(x)
    even = out[..., 0::2]
    even.copy_(x[..., 1::2])
    out[..., 1::2] = x[..., ::2]
    return out @ w, even


def no_product(x, w):
    out = torch.empty_like(x)
    out[..., 0::2] = x[..., 1::2]
    out[..., 1::2] = x[..., ::2]
    return out + w[0]


@pytest.mark.parametrize(
    "function",
    [
        read_between,
        written_thrice,
        written_in_part,
        the_same_columns,
        rows,
        other_order,
        written_result_is_used,
        no_product,
    ],
)
def test_left_as_it_is(function):
    gm = trace(function, X, W)
    simplify(gm)
    assert "copy_" in text(gm)
    want, out = function(X, W), gm(X, W)
    for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (out, want)), strict=True):
        assert torch.equal(a, b)
