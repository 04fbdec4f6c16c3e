"""Where fxrewrite::sdpa could be slower than what it replaces: a grid of shapes, the worst ratios printed.

    python tests/benchmarks/survey_attention.py [plain|masks|windows|written] [--dtype bf16] [--below 1.05]

On one thread, each pair interleaved, the least CPU time of each. "plain" goes over query lengths, key lengths and
head sizes; "masks" over masks of every broadcast, causality, grouped heads, strides and batches; "windows" over many
small images' windows; "written" over the formula written out. Calls whose replacement is refused on this machine are
counted, and not timed. FXREWRITE_ISA caps the instruction set of ours as usual.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

import fxrewrite.ops  # noqa: F401
from fxrewrite.rewriting.choice import arguments_of, choose

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp16": torch.float16}
LENGTHS = (1, 2, 4, 8, 16, 17, 32, 64, 77, 100, 128, 197, 257, 577, 1024, 4096)
HEAD_SIZES = (16, 32, 40, 64, 72, 80, 96, 128, 160, 256, 512)
Call = Callable[[], object]
Case = tuple[
    str, Callable[[], tuple[dict[str, Any], Call]]
]  # a name; what makes ours' arguments, and eager's call


def least(calls: list[Call], rounds: int, seconds: float) -> list[float]:
    """The least time of each call, in seconds: `rounds` samples in turn, of a few calls where they are short."""
    repeats = []
    for call in calls:
        call()
        begin = time.thread_time()
        call()
        repeats.append(max(1, int(seconds / rounds / 2 / max(time.thread_time() - begin, 1e-7))))
    samples: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, repeat, times in zip(calls, repeats, samples, strict=True):
            begin = time.thread_time()
            for _ in range(repeat):
                call()
            times.append((time.thread_time() - begin) / repeat)
    return [min(times) for times in samples]


def heads_for(length: int, keys: int, dim: int) -> int:
    """So many that a case takes some milliseconds."""
    return max(1, min(8, int(3e8 / (4 * length * keys * dim))))


def draw(batch, heads, groups, length, keys, dim, dtype, layout="heads"):
    def one(count: int, tokens: int) -> torch.Tensor:
        if layout == "tokens":  # [B, N, H, D], as projections leave it
            return torch.randn(batch, tokens, count, dim).to(dtype).transpose(1, 2)
        if layout == "packed":  # [B, N, 3, H, D]
            return torch.randn(batch, tokens, 3, count, dim).to(dtype)[:, :, 0].transpose(1, 2)
        if layout == "columns":  # channels first
            return torch.randn(batch, count, dim, tokens).to(dtype).mT
        return torch.randn(batch, count, tokens, dim).to(dtype)

    return one(heads, length), one(groups, keys), one(groups, keys)


def mask_of(kind: str, batch: int, heads: int, length: int, keys: int, dtype: torch.dtype) -> torch.Tensor:
    what, where = kind.split(" ")
    shape = {
        "[L,S]": (length, keys),
        "[B,1,1,S]": (batch, 1, 1, keys),
        "[B,1,L,S]": (batch, 1, length, keys),
        "[1,H,L,S]": (1, heads, length, keys),
        "[B,H,L,S]": (batch, heads, length, keys),
        "[B,1,L,S]e": (batch, 1, 1, keys),
    }[where]
    if what == "bool":
        mask = torch.rand(shape) > 0.05
    else:
        mask = torch.randn(shape).to(torch.float32 if what == "float" else dtype)
    return mask.expand(batch, 1, length, keys) if where.endswith("e") else mask


def fused(
    dtype, batch, heads, length, keys, dim, *, groups=None, layout="heads", mask=None, causal=False
) -> Case:
    groups = groups or heads
    name = f"[{batch},{heads}{f'/{groups}' if groups != heads else ''},{length}x{keys},{dim}]"
    name += f" {layout}" * (layout != "heads") + f" mask {mask}" * bool(mask) + " causal" * causal

    def make() -> tuple[dict[str, Any], Call]:
        q, k, v = draw(batch, heads, groups, length, keys, dim, dtype, layout)
        given = mask_of(mask, batch, heads, length, keys, dtype) if mask else None
        options = {"is_causal": causal, "enable_gqa": groups != heads}
        call = lambda: F.scaled_dot_product_attention(q, k, v, given, **options)  # noqa: E731
        return {"query": q, "key": k, "value": v, "attn_mask": given, **options}, call

    return name, make


def written(dtype, batch, heads, length, keys, dim, *, mask=None, softmax=torch.float32) -> Case:
    name = (
        f"[{batch},{heads},{length}x{keys},{dim}] written, softmax in {str(softmax)[6:]}"
        + f" mask {mask}" * bool(mask)
    )

    def make() -> tuple[dict[str, Any], Call]:
        q, k, v = draw(batch, heads, heads, length, keys, dim, dtype, "tokens")
        given = mask_of(mask, batch, heads, length, keys, dtype) if mask else None

        def chain() -> torch.Tensor:
            scores = q @ k.mT * dim**-0.5
            if given is not None:
                scores = scores + given if given.is_floating_point() else scores.masked_fill(~given, -1e4)
            return scores.softmax(-1, dtype=softmax).to(dtype) @ v

        fill = -1e4 if given is not None and given.dtype == torch.bool else None
        return {
            "query": q,
            "key": k,
            "value": v,
            "attn_mask": given,
            "safe_softmax": False,
            "mask_fill": fill,
        }, chain

    return name, make


def grid(kind: str, dtype: torch.dtype) -> Iterator[Case]:
    if kind == "plain":
        for length, dim in itertools.product(LENGTHS, HEAD_SIZES):
            for keys in dict.fromkeys((length, 300, 2048)):
                yield fused(dtype, 1, heads_for(length, keys, dim), length, keys, dim)
    if kind == "masks":
        places = ("[L,S]", "[B,1,1,S]", "[B,1,L,S]", "[1,H,L,S]", "[B,H,L,S]", "[B,1,L,S]e")
        masks = [f"{what} {where}" for what in ("bool", "float", "same") for where in places]
        for length, dim in itertools.product((1, 4, 17, 77, 256, 1024), (32, 72, 128)):
            for keys in dict.fromkeys((length, 300)):
                sizes = (dtype, 2, 4, length, keys, dim)
                for mask in masks:
                    yield fused(*sizes, mask=mask)
                yield fused(*sizes, causal=True)
                yield fused(*sizes, groups=1)
                yield fused(*sizes, groups=2, causal=True)
                for layout in ("tokens", "packed", "columns"):
                    yield fused(*sizes, layout=layout)
                yield fused(dtype, 8, 2, length, keys, dim)
    if kind == "windows":
        for windows, heads, tokens in itertools.product((1, 4, 16, 64), (4, 8, 32), (16, 49, 64, 144)):
            sizes = (dtype, windows, heads, tokens, tokens, 32)
            yield fused(*sizes)
            yield fused(*sizes, mask="same [1,H,L,S]")
            yield fused(*sizes, mask="same [B,H,L,S]")
            yield written(*sizes, mask="same [1,H,L,S]")
    if kind == "written":
        for length, dim in itertools.product(
            (1, 2, 4, 8, 16, 17, 32, 77, 197, 257, 1024), (16, 32, 64, 72, 128, 256)
        ):
            for keys in dict.fromkeys((length, 300, 2048)):
                heads = heads_for(length, keys, dim)
                yield written(dtype, 1, heads, length, keys, dim)
                if keys != 2048:
                    yield written(dtype, 1, heads, length, keys, dim, softmax=dtype, mask="same [B,1,L,S]")
                    yield written(
                        dtype, 2, max(heads // 2, 1), length, keys, dim, softmax=dtype, mask="bool [B,1,1,S]"
                    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", default=["plain", "masks", "windows", "written"])
    parser.add_argument("--dtype", default="bf16,fp32,fp16")
    parser.add_argument("--below", type=float, default=1.05, help="print ratios under this")
    parser.add_argument("--seconds", type=float, default=0.03, help="for each call of a pair, about")
    parser.add_argument("--only", default="", help="only cases whose name has this in it")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    schema = torch.ops.fxrewrite.sdpa.default._schema
    for kind, name in itertools.product(options.kinds, options.dtype.split(",")):
        ratios: dict[str, float] = {}
        refused = 0
        for case, make in grid(kind, DTYPES[name]):
            if options.only not in case:
                continue
            given, eager = make()
            choice = choose("sdpa", arguments_of(schema, (), given))
            if choice.implementation is None:
                refused += 1
                continue
            calls = [eager, lambda given=given: torch.ops.fxrewrite.sdpa(**given)]
            times = least(calls, 3, options.seconds)
            if times[0] / times[1] < options.below:  # a second look, in case something interfered
                again = least(calls, 7, 3 * options.seconds)
                times = [min(pair) for pair in zip(times, again, strict=True)]
            ratios[case] = times[0] / times[1]
            if ratios[case] < options.below:
                what = choice.implementation.split(":")[-1]
                print(
                    f"  {ratios[case]:5.2f}  {times[0] * 1e6:9.1f} us / {times[1] * 1e6:9.1f}  {name} {case} {what}",
                    flush=True,
                )
        if not ratios:
            print(f"{kind} {name}: {refused} refused", flush=True)
            continue
        worst = min(ratios, key=ratios.__getitem__)
        slower = sum(r < 1 for r in ratios.values())
        print(
            f"{kind} {name}: {len(ratios)} timed, {refused} refused; {slower} slower than eager, the worst "
            f"{ratios[worst]:.2f} at {worst}; median {statistics.median(ratios.values()):.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
