"""Time of fxrewrite::linear and fxrewrite::fp8_linear against what eager PyTorch does, on one thread.

    python tests/benchmarks/bench_linear.py [bf16|fp32|fp8] [--rows 1,4,64] [--sizes 4096x4096,768x768]
                                            [--epilogue gelu,multiply,residual]

Both sides of each pair run interleaved in one process, on CPU time of the thread. Weights rotate over
several copies, as the layers of a model do, so that small rows see cold weights. FXREWRITE_ISA caps the
instruction set of ours as usual. "GB/s" is the weight's bytes over our median time. An epilogue is an
activation, a factor of every element, a residual, or some of these, in this order.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

import fxrewrite.ops
from fxrewrite.ops import linear
from fxrewrite.ops.isa import active_isa

ROWS = "1,2,4,8,16,32,64,77,128,256,512,1024,4096"
SIZES = "4096x4096,1152x1152,768x768,3072x3072,128x128,256x256"
COLD_BYTES = 96 << 20


def interleaved(sides: list[Callable[[int], object]], seconds: float) -> list[list[float]]:
    """Samples of each side, in turn, until the time is up: at least 5 rounds."""
    for side in sides:
        side(0)
    samples: list[list[float]] = [[] for _ in sides]
    started, rounds = time.perf_counter(), 0
    while rounds < 5 or (time.perf_counter() - started < seconds and rounds < 400):
        for times, side in zip(samples, sides, strict=True):
            begin = time.thread_time()
            side(rounds)
            times.append(time.thread_time() - begin)
        rounds += 1
    return samples


def pair(kind: str, rows: int, n: int, k: int, steps: list[str]) -> tuple[list[Callable[[int], object]], int]:
    """Eager and ours for one size and epilogue, and the weight's bytes."""
    dtype = torch.float32 if kind == "fp32" else torch.bfloat16
    size = n * k * {"fp8": 1, "bf16": 2, "fp32": 4}[kind]
    x, bias = torch.randn(rows, k, dtype=dtype), torch.randn(n, dtype=dtype)
    weights = [torch.randn(n, k) * k**-0.5 for _ in range(min(max(COLD_BYTES // size, 1), 16))]
    if kind != "fp8":
        weights = [w.to(dtype) for w in weights]
        epilogue: dict[str, object] = {}
        for step in steps:
            tensor = step in ("multiply", "residual")
            epilogue[step if tensor else "activation"] = torch.randn(rows, n, dtype=dtype) if tensor else step
        return [
            lambda i: linear.reference(x, weights[i % len(weights)], bias, **epilogue),
            lambda i: linear.op(x, weights[i % len(weights)], bias, **epilogue),
        ], size
    weights = [w.to(torch.float8_e4m3fn) for w in weights]
    scale = torch.tensor(0.5)
    return [
        lambda i: F.linear(x, weights[i % len(weights)].to(dtype) * scale.to(dtype), bias),
        lambda i: torch.ops.fxrewrite.fp8_linear(x, weights[i % len(weights)], scale, bias),
    ], size


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", nargs="?", default="bf16", choices=["bf16", "fp32", "fp8"])
    parser.add_argument("--rows", default=ROWS)
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--epilogue", default="", help="steps after the linear (not for fp8)")
    parser.add_argument("--seconds", type=float, default=0.6, help="for each size, beyond five rounds")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"{arguments.kind}, ISA {active_isa()}, torch {torch.__version__}; ratios are eager / ours")
    heads = f"{'eager ms':>10} {'ours ms':>10} {'median':>7} {'min':>7} {'GFLOP/s':>8} {'GB/s':>6}"
    print(f"{'N x K':>12} {'M':>5} {heads}")
    for size in arguments.sizes.split(","):
        n, k = map(int, size.split("x"))
        for rows in map(int, arguments.rows.split(",")):
            steps = [step for step in arguments.epilogue.split(",") if step]
            sides, weight_bytes = pair(arguments.kind, rows, n, k, steps)
            with torch.inference_mode():
                eager, ours = interleaved(sides, arguments.seconds)
            middle = statistics.median(eager), statistics.median(ours)
            print(
                f"{size:>12} {rows:>5} {middle[0] * 1e3:>10.4f} {middle[1] * 1e3:>10.4f}"
                f" {middle[0] / middle[1]:>7.2f} {min(eager) / min(ours):>7.2f}"
                f" {2e-9 * rows * n * k / middle[1]:>8.1f} {weight_bytes * 1e-9 / middle[1]:>6.1f}",
                flush=True,
            )


if __name__ == "__main__":
    assert fxrewrite.ops.native_missing is None, fxrewrite.ops.native_missing
    main()
