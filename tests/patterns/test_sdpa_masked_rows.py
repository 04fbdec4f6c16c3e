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


ZEROED = {
    "masked_fill": lambda q, k, v, m, low: (q @ k.mT).masked_fill(m, low).softmax(-1).masked_fill(m, 0.0) @ v,
    "in place": lambda q, k, v, m, low: (q @ k.mT).masked_fill_(m, low).softmax(-1).masked_fill_(m, 0) @ v,
    "where": lambda q, k, v, m, low: torch.where(m, 0.0, torch.where(m, low, q @ k.mT * 0.3).softmax(-1)) @ v,
    "where it is not": lambda q, k, v, m, low: (
        lambda n: torch.where(n, torch.where(n, q @ k.mT, low).softmax(-1), 0.0) @ v
    )(~m),
    "masks computed twice": lambda q, k, v, m, low: (
        (q @ k.mT)
        .masked_fill(m.view(1, 1, 6, 7) == 1, low)
        .softmax(-1)
        .masked_fill(m.view(1, 1, 6, 7) == 1, 0)
        @ v
    ),
    "float32 softmax": lambda q, k, v, m, low: (
        (q @ k.mT).masked_fill(m, low).softmax(-1, dtype=torch.float32).masked_fill(m, 0.0).to(v.dtype) @ v
    ),
}


@pytest.mark.parametrize("low", [-INF, "min"])
@pytest.mark.parametrize("function", ZEROED.values(), ids=list(ZEROED))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_weights_are_zero_where_scores_are_masked(function, low, dtype):
    low = torch.finfo(dtype).min if low == "min" else low
    mask = (
        ~torch.rand(6, 7, generator=torch.Generator().manual_seed(0)).lt(0.6)
        | (torch.arange(6) == 2)[:, None]
    )
    inputs = *qkv(dtype), mask
    with_low = lambda q, k, v, m: function(q, k, v, m, low)  # noqa: E731
    found = rewritten(with_low, *inputs)
    assert found.of("sdpa").matched, found.of("sdpa").reason
    assert "safe_softmax=True" in found.after
    assert not found.gm(*inputs)[:, :, 2].any()
    assert_right(found, with_low, *inputs)


@pytest.mark.parametrize("low", [-INF, "min"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_bias_makes_rows_that_are_nan_and_others_that_are_zero(dtype, low):
    """Zeros are written where the mask is; what only the bias masks stays NaN."""
    low = torch.finfo(dtype).min if low == "min" else low
    function = lambda q, k, v, b, m: (  # noqa: E731
        (q @ k.mT * 0.3 + b).masked_fill(m, low).softmax(-1).masked_fill(m, 0.0) @ v
    )
    mask = torch.rand(6, 7, generator=torch.Generator().manual_seed(0)) < 0.4
    mask |= (torch.arange(6) == 2)[:, None]
    bias = HEADWISE.clone()
    bias[:, :, 4:] = -INF
    mask[5] = False
    inputs = *qkv(dtype), bias.to(dtype), mask
    found = rewritten(function, *inputs)
    assert found.of("sdpa").matched, found.of("sdpa").reason
    want = function(*inputs)
    assert not want[:, :, 2].any()
    assert bool(want[:, :, 4].isnan().all()) == (low == -INF)
    assert want[:, :, 5].isnan().all()
    assert_right(found, function, *inputs)


OTHERWISE = {
    "another mask": lambda q, k, v, m: (
        (q @ k.mT).masked_fill(m, -INF).softmax(-1).masked_fill(m.roll(1), 0) @ v
    ),
    "the mask's opposite": lambda q, k, v, m: (
        torch.where(m, 0.0, (q @ k.mT).masked_fill(~m, -INF).softmax(-1)) @ v
    ),
    "another number": lambda q, k, v, m: (q @ k.mT).masked_fill(m, -INF).softmax(-1).masked_fill(m, 0.1) @ v,
    "no mask before": lambda q, k, v, m: (q @ k.mT).softmax(-1).masked_fill(m, 0) @ v,
    "a bias after": lambda q, k, v, m: (
        ((q @ k.mT).masked_fill(m, -INF) + v[:, :, :1, :7]).softmax(-1).masked_fill(m, 0) @ v
    ),
    "a score could outweigh": lambda q, k, v, m: (
        (q @ k.mT).masked_fill(m, -9.0).softmax(-1).masked_fill(m, 0) @ v
    ),
    "the mask changes": lambda q, k, v, m: (lambda n, w: w.masked_fill(n.logical_not_(), 0) @ v)(
        n := ~m, (q @ k.mT).masked_fill(n, -INF).softmax(-1)
    ),
}


@pytest.mark.parametrize("function", OTHERWISE.values(), ids=list(OTHERWISE))
def test_weights_masked_otherwise_are_none(function):
    inputs = Q, K, t(2, 4, 7, 8, seed=3), torch.arange(42).view(6, 7) % 3 == 0
    found = rewritten(function, *inputs)
    assert not found.matched
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
