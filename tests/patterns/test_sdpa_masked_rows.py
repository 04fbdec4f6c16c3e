"""Wholly masked rows, NaN, and fills and biases in low precision."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.support.graphs import assert_right, rewritten

from .attention import BIAS, HEADWISE, INF, K, Q, V, qkv, t

pytestmark = pytest.mark.usefixtures("any_kernel")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("causal", [False, True], ids=["masked", "causal"])
def test_decomposed_by_torch(dtype, causal):
    """The fused call as ``run_decompositions`` leaves it, wholly masked rows included."""
    inputs = qkv(dtype, queries=7)
    keep = torch.ones(7, 7, dtype=torch.bool).tril() & (torch.arange(7) != 2)[:, None]

    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            mask = None if causal else keep
            return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)

    with torch.no_grad():
        program = torch.export.export(Model(), inputs).run_decompositions()
        found = rewritten(program.module(), *inputs)
    assert found.of("sdpa").matched, found.of("sdpa").reason
    assert "safe_softmax=True" in found.after
    assert_right(found, lambda q, k, v: Model()(q, k, v), *inputs)


@pytest.mark.parametrize("fill", [-INF, -1e9, "min"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_wholly_masked_rows(fill, dtype):
    value = torch.finfo(dtype).min if fill == "min" else fill
    if fill == -1e9 and dtype is torch.float16:
        pytest.skip("out of range")
    function = lambda q, k, v, m: (q @ k.mT).masked_fill(m, value).softmax(-1) @ v  # noqa: E731
    mask = torch.arange(6)[:, None].expand(6, 7) < 3
    inputs = *qkv(dtype), mask
    found = rewritten(function, *inputs)
    assert found.matched == ["sdpa"]
    assert torch.equal(found.gm(*inputs).isnan(), function(*inputs).isnan())
    assert_right(found, function, *inputs)


def test_a_fill_that_its_dtype_makes_infinite():
    function = lambda q, k, v, m: (  # noqa: E731
        torch.where(m, q @ k.mT, torch.full([], -1e9, dtype=torch.float16)).softmax(-1) @ v
    )
    nothing = torch.zeros(6, 7, dtype=torch.bool)
    found = rewritten(function, Q, K, V, nothing)
    assert found.matched == ["sdpa"]
    assert found.gm(Q, K, V, nothing).isnan().all()
    assert function(Q, K, V, nothing).isnan().all()


def test_biases_are_combined_in_the_dtype_of_the_scores():
    """Two bfloat16 biases on float32 scores: their sum is not rounded to bfloat16."""
    function = lambda q, k, v, a, b: (q @ k.mT + a + b).softmax(-1) @ v  # noqa: E731
    inputs = Q, K, V, (BIAS * 3).bfloat16(), (HEADWISE * 0.01).bfloat16()
    found = rewritten(function, *inputs)
    assert found.matched == ["sdpa"]
    assert_right(found, function, *inputs)


def test_masks_in_two_shapes_of_the_scores():
    def function(q, k, v, m, n):
        scores = (q @ k.mT + m).view(4, 2, 6, 7) + n
        return scores.view(2, 4, 6, 7).softmax(-1) @ v

    inputs = Q, K, V, t(2, 1, 6, 7), t(4, 1, 6, 7)
    found = rewritten(function, *inputs)
    assert_right(found, function, *inputs)
    assert not found.matched
