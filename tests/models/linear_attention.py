"""ReLU linear attention as the SANA repositories write it, in our own words, and look-alikes."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.support.modules import noise

from . import MODELS


class LinearAttention(nn.Module):
    def __init__(self, core, width=64, heads=2):
        super().__init__()
        self.core, self.heads = core, heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 4, 1).unbind(0)  # (batch, heads, head_dim, length)
        y = self.core(q, k, v).to(x.dtype)
        return x + self.out(y.reshape(batch, width, length).transpose(1, 2))


def add(name, dtype, quick=False, **sites):
    def register(core):
        def build():
            return LinearAttention(core).to(dtype), (noise(2, 21, 64, seed=1, dtype=dtype),), {}

        MODELS.add(f"linear-attention-{name}", quick=quick, linear=2, **sites)(build)
        return core

    return register


@add("padded-ones", torch.bfloat16, quick=True, linear_attention=1)
def _(q, k, v):
    q, k, v = F.relu(q).float(), F.relu(k).float(), v.float()
    v = F.pad(v, (0, 0, 0, 1), value=1.0)
    out = torch.matmul(torch.matmul(v, k.transpose(-1, -2)), q)
    return out[:, :, :-1] / (out[:, :, -1:] + 1e-15)


@add("separate-normaliser", torch.float32, linear_attention=1)
def _(q, k, v):
    q, k, v = (t.transpose(-1, -2) for t in (F.relu(q), F.relu(k), v))
    normaliser = q @ k.sum(-2, keepdim=True).transpose(-1, -2) + 1e-6
    return (q @ (k.transpose(-1, -2) @ v) / normaliser).transpose(-1, -2)


@add("negative-elu", torch.float32)
def _(q, k, v):
    q, k, v = (t.transpose(-1, -2) for t in (F.elu(q) + 1, F.elu(k) + 1, v))
    normaliser = q @ k.sum(-2, keepdim=True).transpose(-1, -2) + 1e-6
    return (q @ (k.transpose(-1, -2) @ v) / normaliser).transpose(-1, -2)
