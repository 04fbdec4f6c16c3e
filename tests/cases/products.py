"""Linear layers, with weights in floating point and in FP8."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.support.modules import noise

from .case import BF16, Function, value


@value()
def square_weights_both_ways_round():
    def forward(m, x):
        return x @ m.w, x @ m.w.t(), F.linear(x, m.w), F.linear(x, m.w.t()), m.w @ x.mT

    return Function(forward, w=noise(24, 24, seed=3, dtype=BF16)), (noise(2, 7, 24, seed=4, dtype=BF16),), {}


@value()
def computed_weights():
    def forward(m, x):
        a = F.linear(x, m.w + 0.1 * m.u, m.u[0])
        b = F.linear(x, torch.cat([m.w[:8], m.u[8:]]))
        c = F.linear(x, m.w * (m.u > 0))
        return a, b, c, F.linear(x, x[0, :3])

    tensors = {"w": noise(24, 24, seed=3, dtype=BF16), "u": noise(24, 24, seed=5, dtype=BF16)}
    return Function(forward, **tensors), (noise(2, 7, 24, seed=4, dtype=BF16),), {}


@value()
def odd_sizes_ranks_and_alpha_beta():
    def forward(m, x):
        rank1, empty = x[0, 0], x[:0]
        product = torch.addmm(m.b, x[0], m.w.t(), beta=0.5, alpha=-2.0)
        return F.linear(rank1, m.w), F.linear(empty, m.w, m.b), F.linear(x[None], m.w, m.b), product

    tensors = {"w": noise(13, 33, seed=3, dtype=BF16), "b": noise(13, seed=5, dtype=BF16)}
    return Function(forward, **tensors), (noise(3, 5, 33, seed=4, dtype=BF16),), {}


# ---------------------------------------------------------------- fp8


def fp8_weight(rows, columns, seed=3):
    return noise(rows, columns, seed=seed).to(torch.float8_e4m3fn)


@value()
def fp8_scale_of_each_input_column():
    def forward(m, x):  # cannot move to the output
        return F.linear(x, m.w.to(x.dtype) * m.s.to(x.dtype))

    tensors = {"w": fp8_weight(24, 32), "s": torch.linspace(0.01, 2.0, 32)}
    return Function(forward, **tensors), (noise(5, 32, seed=4, dtype=BF16),), {}


@value()
def fp8_square_weight_with_a_row_or_column_scale():
    def forward(m, x):
        w = m.w.to(x.dtype)
        return F.linear(x, w * m.s), F.linear(x, w * m.s[:, None]), x @ (w * m.s), F.linear(x, w) * m.s

    tensors = {"w": fp8_weight(32, 32), "s": torch.linspace(0.01, 2.0, 32).to(BF16)}
    return Function(forward, **tensors), (noise(5, 32, seed=4, dtype=BF16),), {}


@value()
def fp8_not_a_number_and_extremes_in_the_weight():
    weight = fp8_weight(24, 32)
    bits = weight.view(torch.uint8)
    bits[3, 5], bits[4, 6], bits[5, 7] = 0x7F, 0x7E, 0x01  # NaN, the largest, the smallest subnormal
    forward = lambda m, x: F.linear(x, m.w.to(x.dtype) * m.s.to(x.dtype))  # noqa: E731
    return Function(forward, w=weight, s=torch.tensor(0.5)), (noise(5, 32, seed=4, dtype=BF16),), {}


@value()
def fp8_scale_is_an_input():
    forward = lambda m, x, s: F.linear(x, m.w.to(x.dtype) * s)  # noqa: E731
    return (
        Function(forward, w=fp8_weight(24, 32)),
        (noise(5, 32, seed=4, dtype=BF16), torch.tensor(0.3, dtype=BF16)),
        {},
    )
