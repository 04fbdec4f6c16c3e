"""Time of fxrewrite::fp8_linear against eager and against what no implementation can beat, on one thread.

    python -m tests.benchmarks.bench_fp8 [--rows 1,16,128,1024] [--scales tensor,channel,block,column]

All sides run interleaved in one process, on CPU time of the thread, on cold weights (they rotate over
copies beyond the caches, and no two sides read the same one in turn). The base of a line is the time to read the weight's bytes ("floor", a sum of
them, measured beside), or, from 16 rows on, 2·M·N·K over the rate of a large bfloat16 product of the
framework's ("peak", measured beside, a bound that eager itself sets). The targets are those of an idle
Zen 4; there, the best peer recorded was: M = 1 1.21, 16 1.39, 128 1.07, 1024 1.05 times its base.
"""

from __future__ import annotations

import argparse
import statistics

import torch
import torch.nn.functional as F

import fxrewrite.ops
from fxrewrite.ops.isa import active_isa
from tests.benchmarks.bench_linear import interleaved

N = K = 4096
COPIES = 6
TARGETS = {1: (1.10, 1.21), 16: (1.30, 1.39), 128: (1.07, 1.07), 1024: (1.06, 1.05)}
BF16 = torch.bfloat16


def scaled(kind: str) -> tuple[torch.Tensor, list[int] | None]:
    """A scale of this kind and the block that the operator is given."""
    if kind == "block":
        return torch.rand(N // 128, K // 128) + 0.5, [128, 128]
    return {"tensor": torch.tensor(0.5), "channel": torch.rand(N, 1) + 0.5, "column": torch.rand(1, K) + 0.5}[
        kind
    ], None


def line(rows: int, kind: str, weights: list[torch.Tensor], seconds: float) -> str:
    x = torch.randn(rows, K).to(BF16)
    scale, block = scaled(kind)

    def eager(i: int) -> torch.Tensor:
        spread = scale if block is None else scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
        return F.linear(x, weights[i % COPIES].to(BF16) * spread.to(BF16))

    def ours(i: int) -> torch.Tensor:
        return torch.ops.fxrewrite.fp8_linear(x, weights[(i + 2) % COPIES], scale, None, block)

    sides = [eager, ours]
    if rows < 16:
        sides.append(lambda i: weights[(i + 4) % COPIES].view(torch.int64).sum())
    else:
        big, square = torch.randn(1024, K).to(BF16), torch.randn(N, K).to(BF16)
        sides.append(lambda i: F.linear(big, square))
    with torch.inference_mode():
        samples = interleaved(sides, seconds)
    share = 1.0 if rows < 16 else rows / 1024
    middle, least = ([f(side) for side in samples] for f in (statistics.median, min))
    target, peer = TARGETS.get(rows, (float("nan"), float("nan")))
    return (
        f"{rows:>5} {kind:>8} {middle[0] * 1e3:>10.3f} {middle[1] * 1e3:>10.3f} {least[0] / least[1]:>8.1f}"
        f" {least[1] / (least[2] * share):>10.2f} {middle[1] / (middle[2] * share):>10.2f} {target:>7.2f} {peer:>6.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default="1,16,128,1024")
    parser.add_argument("--scales", default="tensor,channel,block,column")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each line, beyond five rounds")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"N = K = {N}, ISA {active_isa()}, torch {torch.__version__}")
    print(
        f"{'M':>5} {'scale':>8} {'eager ms':>10} {'ours ms':>10} {'x eager':>8} {'min/base':>10} {'med/base':>10}"
        f" {'target':>7} {'peer':>6}"
    )
    weights = [(torch.randn(N, K) * 8).to(torch.float8_e4m3fn) for _ in range(COPIES)]
    for rows in map(int, arguments.rows.split(",")):
        for kind in arguments.scales.split(","):
            print(line(rows, kind, weights, arguments.seconds), flush=True)


if __name__ == "__main__":
    assert fxrewrite.ops.native_missing is None, fxrewrite.ops.native_missing
    main()
