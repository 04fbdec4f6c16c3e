"""Tensors that are written to between the nodes of a site, by whatever name."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.support.modules import fill_, noise

from .case import BF16, FP32, INF, Function, attention, qkv, value


@value()
def keys_overwritten_after_the_scores():
    def forward(m, q, k, v):
        k = k.clone()
        scores = q @ k.mT * 0.2
        k.zero_()
        return scores.softmax(-1) @ v + k

    return Function(forward), qkv(), {}


@value()
def values_overwritten_through_a_view():
    def forward(m, q, k, v):
        v = v.clone()
        p = (q @ k.mT * 0.2).softmax(-1)
        v[:, :, ::2] = 1.0
        return p @ v

    return Function(forward), qkv(), {}


@value()
def inputs_mutated():
    def forward(m, q, k, v):
        out = attention(q, k, v)
        v.mul_(0.5)
        q[:, :, 0] = 7.0
        return out, attention(q, k, v)

    return Function(forward), qkv(FP32), {}


@value()
def weight_overwritten_between_two_linears():
    def forward(m, x):
        w = m.w.clone()
        y = F.linear(x, w)
        w.neg_()
        return F.linear(y, w)

    return Function(forward, w=noise(32, 32, seed=3, dtype=BF16)), (noise(4, 32, seed=4, dtype=BF16),), {}


@value()
def values_overwritten_through_another_layout():
    def forward(m, q, k, v):
        v = v.clone()
        tokens_first, flat = v.transpose(1, 2), torch.as_strided(v, (5,), (7,))
        p = (q @ k.mT * 0.2).softmax(-1)
        tokens_first[:, 3:5].mul_(2)
        flat.fill_(1.0)
        return p @ v

    return Function(forward), qkv(), {}


@value()
def values_overwritten_through_what_copies_nothing():
    def forward(m, q, k, v):
        v = v * 1
        aliases = v.contiguous(), v.to(v.dtype), v.reshape(6, 12, 32), v.detach()
        p = (q @ k.mT * 0.2).softmax(-1)
        for i, alias in enumerate(aliases):
            alias[1, ..., i] = i
        return p @ v

    return Function(forward), qkv(), {}


@value()
def a_copy_overwritten():
    def forward(m, q, k, v):
        v = v.transpose(1, 2) * 1
        copied = v.transpose(1, 2).reshape(2, 3, -1)
        p = (q @ k.mT * 0.2).softmax(-1)
        copied.zero_()
        return p @ v.transpose(1, 2), copied

    return Function(forward), qkv(), {}


@value()
def values_written_by_operators_of_many_tensors_and_of_indices():
    def forward(m, q, k, v):
        v = v.clone()
        p = (q @ k.mT * 0.2).softmax(-1)
        torch._foreach_mul_([v], 2.0)
        v.index_add_(2, torch.tensor([1, 1, 4]), k[:, :, :3])
        v.scatter_(2, torch.zeros(2, 3, 1, 32, dtype=torch.long), 5.0)
        return p @ v

    return Function(forward), qkv(), {}


@value()
def queries_built_by_halves():
    def forward(m, x, k, v):
        q = torch.empty_like(x)
        first, second = q.chunk(2, -1)
        first.copy_(x[..., 16:])
        second.copy_(-x[..., :16])
        scores = q @ k.mT * 0.2
        second.zero_()
        return scores.softmax(-1) @ v, q

    return Function(forward), qkv(), {}


@value()
def queries_written_between_two_uses():
    def forward(m, q, k, v):
        q = q * 1.0
        one = F.scaled_dot_product_attention(q, k, v)
        q.add_(1)
        return one, F.scaled_dot_product_attention(q, k, v), q

    return Function(forward), qkv(), {}


@value()
def one_storage_behind_queries_keys_and_values():
    def forward(m, q, k, v):
        base = torch.stack([q, k, v])
        a, b, c = base.unbind(0)
        scores = a @ b.mT * 0.2
        base[1:].mul_(0.5)
        return scores.softmax(-1) @ c, base

    return Function(forward), qkv(), {}


@value()
def expanded_keys_written_through_what_they_repeat():
    def forward(m, q, k, v):
        one = k[:, :1] * 1
        keys = one.expand(2, 3, 12, 32)
        scores = q @ keys.mT * 0.2
        one.add_(1)
        return scores.softmax(-1) @ keys

    return Function(forward), qkv(), {}


def scores_then_write(m, q, k, v):
    scores = q @ k.mT * 0.2
    q.mul_(0.3)
    return scores.softmax(-1) @ v, k


@value()
def one_tensor_given_three_times_and_written():
    x = noise(2, 3, 12, 32, seed=4, dtype=BF16)
    return Function(scores_then_write), (x, x, x), {}


@value()
def inputs_that_overlap_and_are_written():
    x = noise(2, 3, 13, 32, seed=4, dtype=BF16)
    return Function(scores_then_write), (x[:, :, 1:], x[:, :, :-1], x[:, :, 1:]), {}


@value()
def masks_written_between_two_uses():
    def forward(m, q, k, v):
        mask = torch.zeros(12, 12, dtype=q.dtype)
        mask[3] = -1.0
        one = F.scaled_dot_product_attention(q, k, v, mask)
        mask[:, 5:] = -INF
        two = F.scaled_dot_product_attention(q, k, v, mask)
        m.seen.tril_()
        three = F.scaled_dot_product_attention(q, k, v, m.seen)
        m.seen.logical_not_()
        return one, two, three, (q @ k.mT * 0.2).masked_fill(m.seen, -1e4).softmax(-1) @ v

    return Function(forward, seen=torch.ones(12, 12, dtype=torch.bool)), qkv(), {}


@value()
def a_cache_of_keys_and_values_in_buffers():
    def forward(m, q, k, v):
        m.keys[:, :, :12] = k
        m.values[:, :, :12].copy_(v)
        out = F.scaled_dot_product_attention(q, m.keys[:, :, :12], m.values[:, :, :12])
        m.keys.zero_()
        return out + m.keys.sum()

    cache = {name: torch.ones(2, 3, 16, 32, dtype=BF16) for name in ("keys", "values")}
    return Function(forward, **cache), qkv(), {}


class Layer(nn.Module):
    """A linear layer of which ``function`` makes a forward."""

    def __init__(self, function):
        super().__init__()
        self.layer = nn.Linear(32, 32)
        self.function = function
        fill_(self)
        self.to(BF16)

    def forward(self, *args):
        return self.function(self.layer, *args)


TOKENS = (noise(2, 7, 32, seed=4, dtype=BF16),)


@value()
def parameters_changed_by_the_forward():
    def forward(layer, x):
        y = layer(x)
        layer.weight.mul_(0.5)
        z = layer(y)
        layer.weight.copy_(z[0, 0].expand(32, 32))
        layer.weight[3:5].fill_(0.25)
        return y, z, layer(z)

    return Layer(forward), TOKENS, {}


@value()
def parameters_changed_behind_autograd():
    def forward(layer, x):
        y = layer(x)
        layer.weight.data.add_(0.5)
        return layer(y), y

    return Layer(forward), TOKENS, {}


@value()
def a_weight_written_through_its_transpose_and_its_bits():
    def forward(m, x):
        w = m.w.t()
        y = x @ w
        w[0] = 3.0
        z = x @ w
        m.w.view(torch.int16).bitwise_and_(0x7FFF)
        return y, z, F.linear(x, m.w)

    return Function(forward, w=noise(32, 32, seed=3, dtype=BF16)), TOKENS, {}


@value()
def a_weight_that_becomes_another():
    def forward(m, x):
        w = m.w.clone()
        y = F.linear(x, w)
        w.set_(m.u.clone())
        return F.linear(y, w)

    tensors = {"w": noise(32, 32, seed=3, dtype=BF16), "u": noise(32, 32, seed=5, dtype=BF16)}
    return Function(forward, **tensors), TOKENS, {}


@value()
def operands_of_an_epilogue_written_before_it():
    def forward(m, x):
        residual, gate = x * 1, x[:, :1] * 1
        y = F.linear(x, m.w, m.b)
        m.b.add_(1)
        residual.mul_(2)
        gate.zero_()
        x.mul_(3)
        return F.gelu(y) + residual, residual + gate * y, x + y

    tensors = {"w": noise(32, 32, seed=3, dtype=BF16), "b": noise(32, seed=5, dtype=BF16)}
    return Function(forward, **tensors), (TOKENS[0].clone(),), {}


@value()
def fp8_codes_scales_and_decoded_weights_written():
    def forward(m, x):
        w = m.w.clone()
        one = F.linear(x, w.to(x.dtype) * m.s)
        m.s.mul_(2.0)
        w.view(torch.uint8)[3] = 0x38
        decoded = w.to(x.dtype)
        scaled = decoded * m.s
        decoded.zero_()
        two = F.linear(x, scaled)
        scaled.add_(1)
        return one, two, F.linear(x, scaled), decoded

    tensors = {"w": noise(32, 32, seed=3).to(torch.float8_e4m3fn), "s": torch.tensor(0.25, dtype=BF16)}
    return Function(forward, **tensors), TOKENS, {}


@value()
def linear_attention_operands_written():
    def forward(m, q, k, v):
        q, k = F.relu(q), F.relu(k)
        padded = F.pad(v, (0, 1), value=1.0)
        states = padded.mT @ k
        padded.zero_()
        out = states @ q.mT
        k.add_(1)
        return out[..., :-1, :] / (out[..., -1:, :] + 1e-3), k

    return Function(forward), qkv(FP32), {}
