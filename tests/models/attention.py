"""Hand-written attention in the spellings that people use, and look-alikes that must not be rewritten."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.support.modules import noise

from . import MODELS

BF16, FP32 = torch.bfloat16, torch.float32


class Attention(nn.Module):
    """Projections around ``core(q, k, v, mask)`` on (batch, heads, length, head_dim)."""

    def __init__(self, core, width=64, heads=2, kv_heads=None):
        super().__init__()
        self.core, self.heads, self.kv_heads, self.head_dim = core, heads, kv_heads or heads, width // heads
        self.to_q = nn.Linear(width, width)
        self.to_kv = nn.Linear(width, 2 * self.kv_heads * self.head_dim, bias=False)
        self.to_out = nn.Linear(width, width)

    def forward(self, x, mask=None):
        batch, length, width = x.shape
        q = self.to_q(x).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        k, v = self.to_kv(x).view(batch, length, 2, self.kv_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        out = self.core(q, k, v, mask)
        return x + self.to_out(out.transpose(1, 2).reshape(batch, length, width))


def add(name, dtype=BF16, length=13, with_mask=False, width=64, heads=2, kv_heads=None, quick=False, **sites):
    def register(core):
        def build():
            model = Attention(core, width, heads, kv_heads).to(dtype)
            kwargs = {"mask": torch.ones(length, length).tril().bool()} if with_mask else {}
            return model, (noise(2, length, width, seed=1, dtype=dtype),), kwargs

        MODELS.add(f"attention-{name}", quick=quick, linear=3, **sites)(build)
        return core

    return register


@add("fused-causal", fused=1, quick=True)
def _(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@add("fused-gqa", fused=1, heads=4, kv_heads=2, with_mask=True)
def _(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.2, enable_gqa=True)


@add("matmul-div-sqrt", manual=1, quick=True)
def _(q, k, v, mask):
    return torch.softmax(torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1)), -1) @ v


@add("masked-fill", manual=1, with_mask=True, dtype=FP32)
def _(q, k, v, mask):
    scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~mask, float("-inf"))
    return F.dropout(scores.softmax(-1), 0.1, training=False) @ v


@add("additive-mask-fp32-softmax", manual=1, with_mask=True)
def _(q, k, v, mask):
    bias = q.new_zeros(mask.shape).masked_fill(~mask, torch.finfo(q.dtype).min)
    scores = torch.matmul(q, k.transpose(2, 3)) * 0.2 + bias
    return torch.matmul(F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), v)


@add("einsum", manual=1, dtype=FP32)
def _(q, k, v, mask):
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("bhqk,bhkd->bhqd", scores.softmax(dim=-1), v)


@add("bmm-baddbmm", manual=1, quick=True)
def _(q, k, v, mask):
    shape = q.shape
    q, k, v = (t.reshape(-1, *t.shape[-2:]) for t in (q, k, v))
    bias = q.new_zeros(1, 1, 1)
    scores = torch.baddbmm(bias, q, k.transpose(1, 2), beta=0, alpha=0.18)
    return torch.bmm(scores.softmax(-1), v).view(shape)


@add("where-causal", manual=1)
def _(q, k, v, mask):
    keep = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
    scores = torch.where(keep, (q * 0.2) @ k.mT, torch.finfo(q.dtype).min)
    return scores.float().softmax(-1).type_as(v) @ v


@add("gqa-repeat", manual=1, heads=4, kv_heads=2, dtype=FP32)
def _(q, k, v, mask):
    k, v = (t.repeat_interleave(2, dim=1) for t in (k, v))
    return (q @ k.mT / 4.0).softmax(-1) @ v


@add("in-place-scores", manual=1, dtype=FP32)
def _(q, k, v, mask):
    scores = q @ k.mT
    scores.mul_(0.2).add_(torch.arange(k.shape[2], device=k.device) * -0.01)
    return scores.softmax(-1) @ v


@add("softcap", manual=1)
def _(q, k, v, mask):
    return (torch.tanh(q @ k.mT * 0.2 / 20.0) * 20.0).softmax(-1) @ v


# positions of image tokens by height and width, as in MViTv2 (arXiv 2112.01526), ViTDet and SAM
@add("image-positions", manual=1, length=12, dtype=FP32)
def _(q, k, v, mask):
    batch, heads, tokens, width = q.shape
    rows = q.reshape(batch * heads, 3, 4, width)
    by_height = torch.einsum("bhwc,hkc->bhwk", rows, torch.arange(9 * width).view(3, 3, width).to(q).cos())
    by_width = torch.einsum("bhwc,wkc->bhwk", rows, torch.arange(16 * width).view(4, 4, width).to(q).sin())
    scores = (q.flatten(0, 1) * width**-0.5) @ k.flatten(0, 1).transpose(-2, -1)
    scores = scores.view(-1, 3, 4, 3, 4) + by_height[:, :, :, :, None] + by_width[:, :, :, None, :]
    scores = scores.view(batch * heads, tokens, tokens)
    return (scores.softmax(-1) @ v.flatten(0, 1)).view(batch, heads, tokens, width)


# negatives: softmax attentions that are no attention over keys with a plain scale


@add("negative-softmax-over-queries", manual=0, dtype=FP32)
def _(q, k, v, mask):
    return (q @ k.mT * 0.2).softmax(-2) @ v


@add("negative-two-softmaxes", manual=0, dtype=FP32)
def _(q, k, v, mask):
    p = (q @ k.mT * 0.2).softmax(-1)
    return (3.0 * p).softmax(-1) @ v


class Probabilities(nn.Module):
    def forward(self, q, k, v):
        p = (q @ k.mT * 0.2).softmax(-1)
        return p @ v, p.mean(1)


@MODELS.add("attention-negative-probabilities-returned", quick=True, manual=1)
def _():
    return Probabilities(), tuple(noise(2, 3, 9, 16, seed=i) for i in range(3)), {}
