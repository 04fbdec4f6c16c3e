"""Times of each CUDA op against eager, Inductor and the limit of memory: ``python -m tests.gpu.times``.

Medians, with the second cache swept before each run. The limit is the bytes that must move once, at the
speed of a copy measured here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from .device import DEVICE, DRY, at_quality, microseconds, ops

BF16 = torch.bfloat16


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=BF16)


def attention(q, k, v, norm_q=None, norm_k=None):
    """SANA's chain, and with norm tensors SANA-Video's, as those models write it."""
    if norm_q is None:
        norm_q, norm_k = q, k = q.relu(), k.relu()
    numerator = q.float() @ (k.float().mT @ v.float())
    normaliser = norm_q.float() @ norm_k.float().sum(-2, keepdim=True).mT
    return (numerator / (normaliser + 1e-15)).to(v.dtype)


def turned_attention(q, k, v, cos, sin):
    """SANA-Video's chain with its rotary embedding."""

    def turned(x):
        a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)

    q, k = q.relu(), k.relu()
    return attention(turned(q), turned(k), v, q, k)


def fp8(x, weight, scale):
    return F.linear(x, weight.to(x.dtype) * scale.to(x.dtype))


def written(q, k, v):
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


Row = tuple[str, int, Callable, Callable, tuple]


def rows(namespace) -> Iterator[Row]:
    """(name, bytes that must move, eager, ours, arguments)"""
    cut = 64 if DRY else 1  # the shim is slow
    for name, batch, heads, tokens, width, separate in (
        ("sana 1024x1024", 1, 70, 1024, 32, False),
        ("sana 4096x4096", 2, 70, 16384, 32, False),
        ("sana-video 832x480x17", 1, 20, 16384, 112, True),
    ):
        tensors = [
            randn(batch, tokens // cut, heads // min(cut, 10), width).transpose(1, 2) for _ in range(5)
        ]
        given = tuple(tensors if separate else tensors[:3])

        def ours(q, k, v, *norms):
            return namespace.relu_linear_attention(q, k, v, *norms, eps=1e-15, relu=not norms)

        yield name, 2 * (len(given) + 1) * tensors[0].numel(), attention, ours, given
    tokens, width = 16384 // cut, 112
    q, k, v = (randn(1, tokens, 20 // min(cut, 10), width).transpose(1, 2) for _ in range(3))
    angle = torch.randn(tokens, width, device=DEVICE)
    turns = angle.cos()[:, ::2], angle.sin()[:, 1::2]

    def turning(q, k, v, cos, sin):
        return namespace.relu_linear_attention(q, k, v, None, None, cos, sin, eps=1e-15)

    yield "sana-video with its rotary embedding", 8 * q.numel(), turned_attention, turning, (q, k, v, *turns)
    wide = tuple(t.float() for t in (q, k, v))
    for name, high in (("sana-video's core in float32", False), ("the same at quality high", True)):

        def in_float32(q, k, v, high=high):
            with at_quality(namespace, high):
                return namespace.relu_linear_attention(q, k, v, eps=1e-15)

        yield name, 16 * q.numel(), attention, in_float32, wide
    for m, n, k in (
        (1, 4096, 4096),
        (1, 14336, 4096),
        (16, 4096, 4096),
        (64, 4096, 4096),
        (128, 4096, 4096),
    ) + ((1024, 4096, 4096),) * (not DRY):
        n, k = n // cut, k // cut
        weight, scale = randn(n, k).to(torch.float8_e4m3fn), torch.rand(n, 1, device=DEVICE)
        bytes_ = n * k + 2 * m * (n + k)
        yield f"fp8 {m} x {n} x {k}", bytes_, fp8, namespace.fp8_linear, (randn(m, k), weight, scale)
    q, k, v = (randn(1, 24, 4096 // cut, 128) for _ in range(3))
    yield (
        "written attention 24 x 4096 x 128",
        8 * q.numel(),
        written,
        F.scaled_dot_product_attention,
        (q, k, v),
    )


def main() -> None:
    namespace = ops()
    source = torch.empty((1 << 30) // (1024 if DRY else 1), dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    speed = 2 * source.numel() / microseconds(lambda: target.copy_(source))  # bytes a microsecond
    print(f"   copy: {speed / 1e6:.2f} TB/s{'  (dry run: times mean nothing)' if DRY else ''}")
    print("   | case | ours µs | of the limit | × eager | × inductor |\n   |---|--:|--:|--:|--:|")
    with torch.no_grad():
        for name, bytes_, eager, ours, arguments in rows(namespace):
            mine = microseconds(lambda: ours(*arguments))  # noqa: B023
            theirs = microseconds(lambda: eager(*arguments))  # noqa: B023
            inductor = "-"
            if not DRY:
                compiled = torch.compile(eager, dynamic=False)
                inductor = f"{microseconds(lambda: compiled(*arguments)) / mine:.2f}"  # noqa: B023
            limit = bytes_ / speed / mine
            print(f"   | {name} | {mine:.1f} | {limit:.0%} | {theirs / mine:.2f} | {inductor} |", flush=True)


if __name__ == "__main__":
    main()
