"""Autocast, gradients, training and random numbers, switched inside of the model."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.support.modules import fill_, noise

from .case import BF16, FP16, FP32, Function, qkv, value


def linear(m, x):
    return F.linear(x, m.w)


def one_weight(function):
    return Function(function, w=noise(32, 32, seed=3) * 0.2), (noise(2, 7, 32, seed=4),), {}


# ---------------------------------------------------------------- autocast


@value()
def autocast_switched_on_and_off_inside():
    def forward(m, x):
        a = linear(m, x)
        with torch.autocast("cpu", dtype=BF16):
            b = linear(m, a)
            with torch.autocast("cpu", enabled=False):
                c = linear(m, b.float())
            d = linear(m, c)
        return a, b, c, d, linear(m, d.float())

    return one_weight(forward)


@value()
def casts_that_autocast_makes_needed():
    def forward(m, x):
        with torch.autocast("cpu", dtype=BF16):
            y = linear(m, x)
            casts = y.float(), y.type_as(x), y.to(BF16), torch.cat([y, y]), y.softmax(-1), y + x
        return y, *casts, F.layer_norm(y, (32,))

    return one_weight(forward)


@value()
def autocast_to_half_precision():
    def forward(m, x):
        with torch.autocast("cpu", dtype=FP16):
            y = linear(m, linear(m, x))
        return y, linear(m, y.float())

    return one_weight(forward)


@value(never=("linear",))
def autocast_switched_off_for_another_device():
    def forward(m, x):
        with torch.autocast("cpu", dtype=BF16), torch.autocast("cuda", enabled=False):
            return linear(m, x)

    return one_weight(forward)


@value(never=("sdpa",))
def autocast_around_a_part_of_an_attention():
    def forward(m, q, k, v):
        with torch.autocast("cpu", dtype=BF16):
            scores = q @ k.mT
        one = (scores.float() * 0.2).softmax(-1) @ v
        p = (q @ k.mT * 0.2).softmax(-1)
        with torch.autocast("cpu", dtype=BF16):
            return one, p @ v

    return Function(forward), qkv(FP32), {}


@value()
def autocast_across_a_graph_break():
    def forward(m, x):
        with torch.autocast("cpu", dtype=BF16):
            y = linear(m, x)
            torch._dynamo.graph_break()
            y = linear(m, y)
        return linear(m, y.float())

    return one_weight(forward)


# ---------------------------------------------------------------- gradients


@value()
def inference_mode_and_gradients_switched_inside():
    def forward(m, x):
        with torch.inference_mode():
            a = linear(m, x)
            with torch.no_grad():
                b = linear(m, a)
            with torch.inference_mode(False):
                c = linear(m, x + 1)
        with torch.enable_grad():
            d = linear(m, x)
        a = a.clone().add_(1)
        return a, b.clone(), c, d.detach(), linear(m, a)

    return one_weight(forward)


@value()
def a_gradient_taken_inside():
    class Guided(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(32, 32)
            fill_(self)

        def forward(self, x):
            with torch.enable_grad():
                y = self.layer(x)
                gradient = torch.autograd.grad(y.square().sum(), self.layer.weight)[0]
            return self.layer(x), y.detach(), gradient

    return Guided(), (noise(4, 32),), {}


@value()
def parameters_frozen_by_the_forward():
    class Freezing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(32, 32)
            fill_(self)

        def forward(self, x):
            for parameter in self.parameters():
                parameter.requires_grad_(False)
            return self.layer(x)

    return Freezing(), (noise(4, 32),), {}


# ---------------------------------------------------------------- random numbers


@value()
def random_numbers_in_and_around_an_attention():
    def forward(m, q, k, v):
        torch.randn(3)  # unused, and drawn all the same
        scores = q @ k.mT * 0.2 + torch.rand(12, 12)
        out = scores.softmax(-1) @ (v + torch.randn_like(v) * 0.1)
        keep = torch.empty(12, 12).bernoulli_(0.7).bool() | torch.eye(12, dtype=torch.bool)
        return out, F.scaled_dot_product_attention(q, k, v, keep) + torch.rand(())

    return Function(forward), qkv(FP32), {}


@value()
def dropout_by_the_call():
    def forward(m, q, k, v):
        p = (q @ k.mT * 0.2).softmax(-1)
        outs = [F.dropout(p, rate, True) @ v for rate in (0.3, 0.0, 1.0)]
        return *outs, F.scaled_dot_product_attention(q, k, v, dropout_p=0.25)

    return Function(forward), qkv(FP32), {}


@value()
def training_switched_inside():
    class Switching(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(32, 4, dropout=0.3, batch_first=True)
            self.norm = nn.BatchNorm1d(7)
            fill_(self)

        def forward(self, x):
            self.train()
            trained = self.norm(self.attention(x, x, x)[0])
            self.eval()
            return trained, self.attention(x, x, x)[0]

    return Switching(), (noise(2, 7, 32, seed=4),), {}
