"""PREDICTED share of AMX peak, from the tile instructions that the kernels execute. No time is measured.

    python tests/benchmarks/amx_prediction.py

The emulator of native/testing executes and counts the instructions, on any machine with AVX512-BF16. Columns:

products   tdpbf16ps executed, over the fewest there can be (multiply-adds / (16·16·32))
loads ...  of tiles, a product
config     ldtilecfg executed
peak       PREDICTED upper bound of the share of AMX peak: ideal cycles over those of the tile instructions

Cycles are those of Intel's optimization reference manual for Sapphire Rapids: a product starts as many cycles
after the last as its left operand has rows (16 at most: then it is at the peak of 512 multiply-adds a cycle),
a tile load takes 8, a store 16, and loads and stores go on beside products. A configuration is counted with
its whole latency, 204. What is not counted only takes from the share: caches that do not deliver, packing,
decoding of FP8, softmax, epilogues. In attention the exponentials outweigh the products.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.support import amx

CASES = """
linear 8x1024x1024  linear 16x1024x1024  linear 77x768x768  linear 128x1024x1024  linear 256x1152x1152
linear 512x512x2048 linear 100x1000x500
fp8_linear 16x1024x1024  fp8_linear 128x1024x1024
sdpa 4x512x64  sdpa 4x512x128  sdpa 4x480x72  sdpa 4x512x80  causal 4x512x64  causal 2x1024x128
relu_linear_attention 4x1024x32  relu_linear_attention 2x1024x112
"""


def call_of(op: str, a: int, b: int, c: int) -> tuple[Callable[[], object], float]:
    """The call and its multiply-adds: M x N x K of a linear layer; heads x length x head size of attention."""
    import torch

    ops = torch.ops.fxrewrite
    if op in ("linear", "fp8_linear"):
        x, weight = torch.randn(a, c).bfloat16(), torch.randn(b, c).bfloat16()
        if op == "linear":
            return lambda: ops.linear(x, weight), a * b * c
        codes, scale = weight.to(torch.float8_e4m3fn), torch.tensor(0.5)
        return lambda: ops.fp8_linear(x, codes, scale), a * b * c
    q, k, v = (torch.randn(1, a, b, c).bfloat16() for _ in range(3))
    if op == "relu_linear_attention":  # its second product is in fp32, not on tiles
        return lambda: ops.relu_linear_attention(q, k, v, eps=1e-6), a * b * c * c
    causal = op == "causal"
    pairs = b * (b + 1) / 2 if causal else b * b
    return lambda: ops.sdpa(q, k, v, is_causal=causal), 2 * a * pairs * c


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("case", nargs="*", help='pairs of op and sizes, such as "linear 77x768x768"')
    words = " ".join(parser.parse_args().case).split() or CASES.split()

    os.environ["FXREWRITE_ISA"] = "amx_bf16"
    amx.load()
    import torch

    from fxrewrite.ops.isa import active_isa, amx_obstacle

    if active_isa() != "amx_bf16":
        raise SystemExit(f"no tiles to count: {amx_obstacle()}")
    torch.set_num_threads(1)
    print("Counted by an emulator. The share of peak is a PREDICTION and an upper bound: nothing was timed.")
    heads = f"{'products':>9} {'over least':>10} {'loads':>6} {'stores':>6} {'config':>6} {'peak':>6}"
    print(f"{'':22} {'sizes':>13} {heads}")
    for op, sizes in zip(words[::2], words[1::2], strict=True):
        call, multiply_adds = call_of(op, *map(int, sizes.split("x")))
        amx.reset()
        call()
        counted = amx.total()
        done, least = counted.instructions, multiply_adds / (16 * 16 * 32)
        products = done["tdpbf16ps"]
        if products == 0:
            print(f"{op:22} {sizes:>13} {'none: not on tiles':>28}")
            continue
        memory = 8 * done["tileloadd"] + 16 * done["tilestored"]
        cycles = max(counted.multiplied_rows, memory) + 204 * done["ldtilecfg"]
        print(
            f"{op:22} {sizes:>13} {products:>9} {products / least:>10.3f} {done['tileloadd'] / products:>6.2f}"
            f" {done['tilestored'] / products:>6.2f} {done['ldtilecfg']:>6} {16 * least / cycles:>6.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
