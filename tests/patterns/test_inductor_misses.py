"""What Inductor's own attention fusion is known to miss, or to get wrong, as reported to PyTorch.

Each is written from the description in the issue, and is a site here with the right numbers.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from fxrewrite.report import Reason
from tests.support.graphs import assert_right, rewritten

pytestmark = pytest.mark.usefixtures("any_kernel")


def t(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 * seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def qkv(dtype=torch.float32, shape=(4, 2, 16, 32)):
    return tuple(t(*shape, seed=i, dtype=dtype) for i in range(3))


def commuted(q, k, v, mask):
    """#195782: the mask on the left of the sum."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    masked = mask + q @ k.permute(0, 1, 3, 2)
    return F.dropout(masked.float().softmax(-1).type(v.dtype), p=0.1, training=False) @ v


def multiplied(q, k, v):
    """#195412: the scale as a product, and a boolean mask that is added."""
    mask = torch.ones(q.size(1), k.size(1), dtype=torch.bool, device=q.device).tril(diagonal=0)
    mask = mask.masked_fill(torch.logical_not(mask), -float("inf"))
    q, k, v = (x.permute(0, 2, 1, 3) for x in (q, k, v))
    return (torch.matmul(q, k.transpose(-2, -1)).mul(1.0 / 3.0) + mask).softmax(dim=-1).matmul(v)


def wider_mask(q, k, v, mask):
    """#195784: half-precision operands, a mask in float32."""
    q, k, v = (x.permute(0, 2, 1, 3) for x in (q, k, v))
    scores = q @ k.permute(0, 1, 3, 2) + mask
    return F.dropout(scores.float().softmax(-1).to(q.dtype), p=0.1, training=False) @ v


def contracted(q, k, v):
    """#195320: scores and output as einsum."""
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), v)


MASK = t(1, 1, 1, 2, seed=4)
CASES = {
    "195782": (commuted, (*qkv(torch.float16), MASK.half())),
    "195782, bfloat16": (commuted, (*qkv(torch.bfloat16), MASK.bfloat16())),
    "195412": (multiplied, qkv()),
    "195784": (wider_mask, (*qkv(torch.float16, (1, 4, 2, 8)), t(1, 1, 4, 4, seed=5))),
    "195784, bfloat16": (wider_mask, (*qkv(torch.bfloat16, (1, 4, 2, 8)), t(1, 1, 4, 4, seed=5))),
    "195320": (contracted, qkv()),
    "195320, bfloat16": (contracted, qkv(torch.bfloat16)),
}


@pytest.mark.parametrize(("function", "inputs"), CASES.values(), ids=list(CASES))
def test_missed_there_and_matched_here(function, inputs):
    found = rewritten(function, *inputs)
    assert found.of("sdpa").matched, found.of("sdpa").reason
    assert_right(found, function, *inputs)


@pytest.mark.parametrize("dim", [0, 1, 2, -2])
def test_softmax_over_another_dim_is_no_attention(dim):
    """#196468: fused there as if over the last dim, with silently wrong numbers."""

    def function(q, k, v):
        return torch.softmax((q @ k.transpose(-2, -1)).div(128), dim=dim).matmul(v)

    inputs = t(4, 4, 2, 8, seed=1), t(4, 4, 3, 8, seed=2), t(4, 4, 3, 8, seed=3)
    found = rewritten(function, *inputs)
    assert found.of("sdpa").code is Reason.STRUCTURE
    assert found.after == found.before
    assert_right(found, function, *inputs)


def test_a_scale_that_is_not_the_default():
    """#174049: fused there with the default scale."""

    def function(q, k, v, mask):
        return ((q @ k.transpose(-2, -1)).div(1 / math.sqrt(8)) + mask).softmax(dim=-1).matmul(v)

    inputs = (*qkv(), t(16, 16, seed=4))
    found = rewritten(function, *inputs)
    assert "scale=2.8284271" in found.after
    assert_right(found, function, *inputs)
