"""What more threads give: each operator, and eager's own for it, on one thread and on several.

    python tests/benchmarks/bench_threads.py [--threads 2] [--only TEXT] [--seconds 2]

Wall times, the numbers of threads and both sides in turn, so the machine must be quiet; medians, and ratios
of medians. Weights and caches of the memory-bound cases ("M=1", "decode") are larger than the caches.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

import fxrewrite.ops  # noqa: F401

OPS = torch.ops.fxrewrite
BF16, F32 = torch.bfloat16, torch.float32
Side = Callable[[], object]


def linear(m: int, n: int, k: int, dtype: torch.dtype = BF16) -> tuple[Side, Side]:
    x, weight = torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype)
    return lambda: OPS.linear(x, weight, None), lambda: F.linear(x, weight)


def sdpa(
    heads: int, length: int, dim: int, keys: int = 0, groups: int = 0, causal: bool = False
) -> tuple[Side, Side]:
    q = torch.randn(1, heads, length, dim).to(BF16)
    k, v = torch.randn(2, 1, groups or heads, keys or length, dim).to(BF16)
    options = {"is_causal": causal, "enable_gqa": groups > 0}
    return (
        lambda: OPS.sdpa(q, k, v, None, **options),
        lambda: F.scaled_dot_product_attention(q, k, v, **options),
    )


def fp8(m: int, n: int, k: int) -> tuple[Side, Side]:
    x, weight = torch.randn(m, k).to(BF16), torch.randn(n, k).to(torch.float8_e4m3fn)
    scale = torch.tensor(0.01)
    return (
        lambda: OPS.fp8_linear(x, weight, scale, None),
        lambda: F.linear(x, weight.to(BF16) * scale.to(BF16)),
    )


def relu_linear_attention(heads: int, dim: int, length: int) -> tuple[Side, Side]:
    q, k, v = torch.randn(3, 1, heads, length, dim).to(BF16)

    def eager() -> torch.Tensor:
        a, b, c = q.float().relu(), k.float().relu(), v.float()
        return (a @ (b.mT @ c) / (a @ b.sum(-2).unsqueeze(-1) + 1e-15)).to(BF16)

    return lambda: OPS.relu_linear_attention(q, k, v, eps=1e-15), eager


CASES: dict[str, Callable[[], tuple[Side, Side]]] = {
    "linear bf16 M=128,N=3072,K=3072": lambda: linear(128, 3072, 3072),
    "linear bf16 M=4096,N=2240,K=2240": lambda: linear(4096, 2240, 2240),
    "linear bf16 M=512,N=14336,K=4096": lambda: linear(512, 14336, 4096),
    "linear fp32 M=1024,N=1152,K=1152": lambda: linear(1024, 1152, 1152, F32),
    "linear bf16 M=1,N=11008,K=4096": lambda: linear(1, 11008, 4096),
    "sdpa bf16 [1,24,1536,128]": lambda: sdpa(24, 1536, 128),
    "sdpa bf16 [1,1,8192,64]": lambda: sdpa(1, 8192, 64),
    "sdpa bf16 [1,32,1024,128] causal": lambda: sdpa(32, 1024, 128, causal=True),
    "sdpa bf16 [1,1,4096,128] causal": lambda: sdpa(1, 4096, 128, causal=True),
    "sdpa bf16 [1,32/8,1024,128]": lambda: sdpa(32, 1024, 128, groups=8),
    "sdpa bf16 [1,32/8,1x8192,128] decode": lambda: sdpa(32, 1, 128, keys=8192, groups=8),
    "fp8 M=1,N=14336,K=4096": lambda: fp8(1, 14336, 4096),
    "fp8 M=128,N=4096,K=4096": lambda: fp8(128, 4096, 4096),
    "fp8 M=1024,N=4096,K=4096": lambda: fp8(1024, 4096, 4096),
    "relu_linear_attention [1,20,112,4096]": lambda: relu_linear_attention(20, 112, 4096),
    "relu_linear_attention [1,70,32,4096]": lambda: relu_linear_attention(70, 32, 4096),
    "relu_linear_attention [1,1,112,65536]": lambda: relu_linear_attention(1, 112, 65536),
}


def measure(name: str, threads: int, seconds: float) -> None:
    sides = CASES[name]()
    samples: dict[tuple[int, int], list[float]] = {(i, n): [] for i in (0, 1) for n in (1, threads)}
    for side in sides:
        side()
    end = time.perf_counter() + seconds
    while len(samples[0, 1]) < 3 or (time.perf_counter() < end and len(samples[0, 1]) < 400):
        for (index, count), times in samples.items():
            torch.set_num_threads(count)
            begin = time.perf_counter()
            sides[index]()
            times.append(time.perf_counter() - begin)
    (one, more), (eager_one, eager_more) = (
        [statistics.median(samples[i, n]) for n in (1, threads)] for i in (0, 1)
    )
    print(
        f"| {name} | {one * 1e3:.2f} | {more * 1e3:.2f} | {one / more:.2f} | {eager_one / eager_more:.2f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--seconds", type=float, default=2, help="per case")
    options = parser.parse_args()
    torch.manual_seed(0)
    print(f"| case | 1 thread ms | {options.threads} threads ms | speed-up | eager's |")
    print("|---|--:|--:|--:|--:|")
    with torch.no_grad():
        for name in CASES:
            if options.only in name:
                measure(name, options.threads, options.seconds)


if __name__ == "__main__":
    main()
