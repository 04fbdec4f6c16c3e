"""Softmax attention, what only looks like it, and linear attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.support.modules import noise

from .case import BF16, FP16, FP32, INF, Function, attention, qkv, value


@value(never=("sdpa",))
def softmax_over_queries():
    return Function(lambda m, q, k, v: (q @ k.mT * 0.2).softmax(-2) @ v), qkv(), {}


@value(never=("sdpa",))
def softmax_over_heads():
    return Function(lambda m, q, k, v: (q @ k.mT * 0.2).softmax(1) @ v), qkv(), {}


@value()
def softmax_over_the_last_of_four_dims_by_number():
    return Function(lambda m, q, k, v: torch.softmax(q @ k.transpose(2, 3) / 6.0, dim=3) @ v), qkv(), {}


@value()
def scale_differs_by_head():
    scale = torch.tensor([0.05, 0.2, 0.7]).view(3, 1, 1).to(BF16)
    return Function(lambda m, q, k, v: attention(q, k, v, m.scale), scale=scale), qkv(), {}


@value()
def scale_of_each_query():
    scale = torch.linspace(0.01, 0.4, 12).view(12, 1).to(BF16)
    return Function(lambda m, q, k, v: attention(q, k, v, m.scale), scale=scale), qkv(), {}


@value()
def scale_after_the_mask():
    bias = noise(12, 12, seed=5, dtype=BF16) * 4
    return Function(lambda m, q, k, v: ((q @ k.mT + m.bias) * 0.2).softmax(-1) @ v, bias=bias), qkv(), {}


@value()
def negative_scale():
    return Function(lambda m, q, k, v: attention(q, k, v, -0.3)), qkv(FP32), {}


@value()
def key_is_not_transposed():
    def forward(m, q, k, v):  # legal because there are as many keys as the head is wide
        return (q @ k * 0.2).softmax(-1) @ v

    return Function(forward), qkv(queries=12, keys=32, width=32), {}


@value()
def probabilities_used_twice():
    def forward(m, q, k, v):
        p = (q @ k.mT * 0.2).softmax(-1)
        return p @ v, p.amax(-1)

    return Function(forward), qkv(FP32), {}


@value()
def scores_used_twice():
    def forward(m, q, k, v):
        scores = q @ k.mT * 0.2
        return scores.softmax(-1) @ v + scores.mean(-1, keepdim=True)

    return Function(forward), qkv(FP32), {}


@value()
def values_are_the_keys():
    return Function(lambda m, q, k: attention(q, k, k)), qkv()[:2], {}


@value()
def masks_of_each_broadcast():
    shapes = ((12, 12), (1, 1, 12, 12), (2, 1, 1, 12), (1, 3, 12, 12), (2, 3, 12, 12), (12,), (12, 1))

    def forward(m, q, k, v, *masks):
        outs = [attention(q, k, v, mask=mask) for mask in masks]
        outs += [F.scaled_dot_product_attention(q, k, v, mask) for mask in masks if mask.dim() != 1]
        outs += [F.scaled_dot_product_attention(q, k, v, mask > -1) for mask in masks if mask.dim() != 1]
        return tuple(outs)

    masks = tuple(noise(*shape, seed=20 + i, dtype=BF16) for i, shape in enumerate(shapes))
    return Function(forward), (*qkv(), *masks), {}


@value()
def rows_without_any_key():
    def forward(m, q, k, v, keep):
        scores = (q @ k.mT * 0.2).masked_fill(~keep, -INF)
        return scores.softmax(-1) @ v, F.scaled_dot_product_attention(q, k, v, keep)

    keep = torch.ones(12, 12, dtype=torch.bool).tril(-1)
    keep[7] = False
    return Function(forward), (*qkv(), keep), {}


@value()
def rows_masked_by_the_lowest_number():
    def forward(m, q, k, v):
        low = torch.full((12, 12), torch.finfo(q.dtype).min, dtype=q.dtype).tril(-1)
        return attention(q, k, v, mask=low + low.flip(0, 1))

    return Function(forward), qkv(FP32), {}


@value()
def not_a_number_in_one_query_key_and_value():
    q, k, v = qkv()
    q[0, 0, 3, 1] = float("nan")
    k[1, 1, 4, 0] = float("nan")
    v[1, 2, 5, 2] = INF
    # The framework's fused call gives numbers for the query that is not one; only the formula tells.
    return (
        Function(
            lambda m, q, k, v: (attention(q, k, v), F.scaled_dot_product_attention(q.nan_to_num(), k, v))
        ),
        (q, k, v),
        {},
    )


@value()
def scores_overflow_half_precision():
    q, k, v = qkv(FP16)
    return Function(lambda m, q, k, v: (q @ k.mT).softmax(-1) @ v), (q * 60, k * 60, v), {}


@value()
def causal_with_fewer_and_more_queries_than_keys():
    def forward(m, q, k, v):
        short, long = q[:, :, :5], torch.cat([q, q], 2)
        return tuple(F.scaled_dot_product_attention(t, k, v, is_causal=True) for t in (short, q, long))

    return Function(forward), qkv(), {}


@value()
def causal_by_hand_aligned_to_the_end():
    def forward(m, q, k, v):
        keep = torch.ones(5, 12, dtype=torch.bool).tril(7)
        return F.scaled_dot_product_attention(q[:, :, :5], k, v, keep)

    return Function(forward), qkv(), {}


@value()
def empty_batch_and_single_key():
    def forward(m, q, k, v):
        empty, one = slice(0, 0), slice(0, 1)
        return attention(q[empty], k[empty], v[empty]), attention(q, k[:, :, one], v[:, :, one])

    return Function(forward), qkv(), {}


@value()
def strided_operands():
    def forward(m, q, k, v):  # stored as (batch, head_dim, length, heads)
        q, k, v = (t.permute(0, 3, 2, 1) for t in (q, k, v))
        return attention(q, k, v), F.scaled_dot_product_attention(q, k, v)

    return Function(forward), tuple(t.permute(0, 3, 2, 1).contiguous() for t in qkv()), {}


# ---------------------------------------------------------------- linear attention


def relu_attention(q, k, v, eps):
    q, k = F.relu(q), F.relu(k)
    padded = F.pad(v, (0, 1), value=1.0)
    out = q @ (k.mT @ padded)
    return out[..., :-1] / (out[..., -1:] + eps)


@value()
def linear_attention_with_queries_that_see_nothing():
    q, k, v = qkv(FP32)
    q[0, 0, 3] = -1.0
    k[1, 1] = -1.0
    return Function(lambda m, q, k, v: relu_attention(q, k, v, 1e-6)), (q, k, v), {}


@value(never=("linear_attention",))
def linear_attention_without_the_second_relu():
    def forward(m, q, k, v):
        out = F.relu(q) @ (k.mT @ F.pad(v, (0, 1), value=1.0))
        return out[..., :-1] / (out[..., -1:].abs() + 1.0)

    return Function(forward), qkv(FP32), {}
