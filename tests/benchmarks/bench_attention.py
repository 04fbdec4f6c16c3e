"""Time of fxrewrite::sdpa and fxrewrite::relu_linear_attention against what eager PyTorch does.

    python tests/benchmarks/bench_attention.py [sdpa|chain|linear] [--only TEXT] [--seconds 1]

On one thread, both sides of each pair interleaved in one process, on CPU time of the thread. "chain" is
attention written out by hand, in the dtype given. Tensors rotate over copies that no cache holds together
where a single query makes a case memory-bound. FXREWRITE_ISA caps the instruction set of ours as usual.
"GFLOP/s" is for our minimum. How the peers do is told by bench_peers.py.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

import fxrewrite.ops  # noqa: F401

BF16, F32 = torch.bfloat16, torch.float32
Side = Callable[[int], object]


def interleaved(sides: list[Side], seconds: float) -> list[list[float]]:
    """Samples of each side, in turn, until the time is up: at least 3 rounds."""
    for side in sides:
        side(0)
    samples: list[list[float]] = [[] for _ in sides]
    started, rounds = time.perf_counter(), 0
    while rounds < 3 or (time.perf_counter() - started < seconds and rounds < 400):
        for times, side in zip(samples, sides, strict=True):
            begin = time.thread_time()
            side(rounds)
            times.append(time.thread_time() - begin)
        rounds += 1
    return samples


def qkv(copies, batch, heads, length, dim, keys=None, groups=None, dim_v=None, dtype=BF16):
    keys, groups, dim_v = keys or length, groups or heads, dim_v or dim
    shapes = (batch, heads, length, dim), (batch, groups, keys, dim), (batch, groups, keys, dim_v)
    return [tuple(torch.randn(shape).to(dtype) for shape in shapes) for _ in range(copies)]


def sdpa_case(
    batch, heads, length, dim, *, keys=None, groups=None, dim_v=None, causal=False, mask=False, dtype=BF16
) -> tuple[str, float, list[Side]]:
    copies = 4 if length == 1 else 1
    inputs = qkv(copies, batch, heads, length, dim, keys, groups, dim_v, dtype)
    keys = keys or length
    allowed = torch.rand(batch, 1, length, keys) > 0.05 if mask else None
    options = {"is_causal": causal, "enable_gqa": groups is not None}
    name = f"sdpa {'bf16' if dtype == BF16 else 'fp32'} [{batch},{heads}{f'/{groups}' if groups else ''},{length}"
    name += f"x{keys}" * (keys != length) + f",{dim}" + f"/{dim_v}" * (dim_v is not None) + "]"
    name += " causal" * causal + " boolmask" * mask
    flops = 2.0 * batch * heads * length * keys * (dim + (dim_v or dim)) * (0.5 if causal else 1)
    return (
        name,
        flops,
        [
            lambda i: F.scaled_dot_product_attention(*inputs[i % copies], attn_mask=allowed, **options),
            lambda i: torch.ops.fxrewrite.sdpa(*inputs[i % copies], allowed, **options),
        ],
    )


def chain_case(batch, heads, length, dim, *, keys=None, dtype=BF16) -> tuple[str, float, list[Side]]:
    ((q, k, v),) = qkv(1, batch, heads, length, dim, keys, dtype=dtype)
    mask = torch.zeros(batch, 1, length, keys or length, dtype=dtype)

    def chain(_: int) -> torch.Tensor:
        scores = q @ k.mT * dim**-0.5 + mask
        return scores.float().softmax(-1).to(q.dtype) @ v

    name = f"chain {'bf16' if dtype == BF16 else 'fp32'} [{batch},{heads},{length}{f'x{keys}' if keys else ''},{dim}]"
    return (
        name,
        4.0 * batch * heads * length * (keys or length) * dim,
        [
            chain,
            lambda _: torch.ops.fxrewrite.sdpa(q, k, v, mask, safe_softmax=False),
        ],
    )


def sana_case(heads, dim, tokens, *, dtype=BF16) -> tuple[str, float, list[Side]]:
    """SANA's processor between the projections: [B, N, C] in and out, in fp32 inside."""
    q, k, v = (torch.randn(1, tokens, heads * dim).to(dtype) for _ in range(3))

    def chain(_: int) -> torch.Tensor:
        a, b, c = (t.transpose(1, 2).unflatten(1, (heads, -1)) for t in (q, k, v))
        a, b = F.relu(a).float(), F.relu(b.transpose(2, 3)).float()
        c = F.pad(c.float(), (0, 0, 0, 1), mode="constant", value=1.0)
        out = (c @ b) @ a
        out = out[:, :, :-1] / (out[:, :, -1:] + 1e-15)
        return out.flatten(1, 2).transpose(1, 2).to(dtype)

    def ours(_: int) -> torch.Tensor:
        a, b, c = (t.unflatten(2, (heads, -1)).transpose(1, 2) for t in (q, k, v))
        out = torch.ops.fxrewrite.relu_linear_attention(a, b, c, eps=1e-15, channel_major=True)
        return out.mT.flatten(1, 2).transpose(1, 2)

    return (
        f"sana {'bf16' if dtype == BF16 else 'fp32'} [1,{heads},{dim},{tokens}]",
        4.0 * heads * tokens * dim * dim,
        [chain, ours],
    )


def sana_video_case(heads, dim, tokens, *, dtype=BF16) -> tuple[str, float, list[Side]]:
    """SANA-Video after ReLU and rotary embedding: the normaliser has features of its own."""
    q, k, rotated_q, rotated_k, v = (torch.randn(1, tokens, heads, dim).relu().to(dtype) for _ in range(5))

    def chain(_: int) -> torch.Tensor:
        a, b, ra, rb, c = (t.permute(0, 2, 3, 1) for t in (q, k, rotated_q, rotated_k, v))
        norm = 1.0 / (b.sum(dim=-1, keepdim=True).transpose(-2, -1) @ a + 1e-15)
        out = (c.float() @ rb.float().transpose(-1, -2)) @ ra.float()
        return (out * norm).flatten(1, 2).transpose(1, 2).to(dtype)

    def ours(_: int) -> torch.Tensor:
        a, b, ra, rb, c = (t.transpose(1, 2) for t in (q, k, rotated_q, rotated_k, v))
        out = torch.ops.fxrewrite.relu_linear_attention(
            ra, rb, c, a, b, eps=1e-15, relu=False, channel_major=True
        )
        return out.mT.flatten(1, 2).transpose(1, 2)

    return (
        f"sanavideo {'bf16' if dtype == BF16 else 'fp32'} [1,{heads},{dim},{tokens}]",
        4.0 * heads * tokens * dim * dim,
        [chain, ours],
    )


def cases(kind: str) -> Iterator[Callable[[], tuple[str, float, list[Side]]]]:
    if kind in ("sdpa", "all"):
        for shape in (
            (1, 16, 1024, 72),
            (1, 20, 1024, 112),
            (1, 24, 1536, 128),
            (1, 16, 4096, 64),
            (2, 12, 512, 64),
        ):
            yield lambda shape=shape: sdpa_case(*shape)
        yield lambda: sdpa_case(1, 20, 1024, 112, keys=300, mask=True)
        yield lambda: sdpa_case(1, 32, 1024, 128, causal=True)
        yield lambda: sdpa_case(1, 16, 2048, 64, causal=True)
        yield lambda: sdpa_case(1, 32, 1024, 128, groups=8)
        yield lambda: sdpa_case(1, 16, 512, 192, dim_v=128)
        yield lambda: sdpa_case(1, 32, 1, 128, keys=2048)
        yield lambda: sdpa_case(1, 32, 1, 128, keys=2048, groups=8)
        yield lambda: sdpa_case(1, 8, 4, 64, keys=1024)
        small = (
            (2, 4, 16, 64),
            (1, 2, 48, 112),
            (2, 2, 12, 64),
            (1, 8, 256, 64),
            (1, 12, 128, 64),
            (1, 16, 77, 64),
        )
        for shape in small:
            yield lambda shape=shape: sdpa_case(*shape)
        for shape in ((1, 16, 1024, 72), (2, 12, 512, 64), *small):
            yield lambda shape=shape: sdpa_case(*shape, dtype=F32)
    if kind in ("chain", "all"):
        for shape in ((1, 16, 1024, 72), (2, 12, 512, 64), (1, 12, 128, 64), (2, 4, 16, 64), (1, 2, 48, 112)):
            for dtype in (BF16, F32):
                yield lambda shape=shape, dtype=dtype: chain_case(*shape, dtype=dtype)
    if kind in ("linear", "all"):
        for tokens in (1024, 4096, 16384):
            yield lambda tokens=tokens: sana_video_case(20, 112, tokens)
        for tokens in (1024, 4096):
            yield lambda tokens=tokens: sana_case(70, 32, tokens)
        yield lambda: sana_case(4, 32, 64)
        yield lambda: sana_case(70, 32, 1024, dtype=F32)
        yield lambda: sana_video_case(20, 112, 1024, dtype=F32)
        yield lambda: sana_video_case(4, 32, 64)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", nargs="?", default="all", choices=["sdpa", "chain", "linear", "all"])
    parser.add_argument("--only", default="", help="only cases whose name has this in it")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each pair")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("| case | eager ms (min) | ours ms (min) | eager / ours (min) | (median) | GFLOP/s |")
    print("|---|--:|--:|--:|--:|--:|")
    for case in cases(options.kind):
        name, flops, sides = case()
        if options.only not in name:
            continue
        eager, ours = interleaved(sides, options.seconds)
        ratio, median = min(eager) / min(ours), statistics.median(eager) / statistics.median(ours)
        speed = flops / min(ours) / 1e9
        print(
            f"| {name} | {min(eager) * 1e3:.3f} | {min(ours) * 1e3:.3f} | {ratio:.2f} | {median:.2f} | {speed:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
