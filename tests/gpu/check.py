"""Every CUDA op against float64 on fresh random inputs, with eager's error beside: ``python -m tests.gpu.check``.

An op is wrong where its RMS error exceeds 1.25 times eager's on the same device, where NaN and inf are in
other places, or where another implementation ran than the one meant. What is meant to run as "..._bf16" is
called at quality "high", and its error is held against what rounding to bfloat16 can do to each element.
``--small`` for compute-sanitizer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from .device import DEVICE, DRY, at_quality, counts, ops

BF16, F32 = torch.bfloat16, torch.float32
Case = tuple[str, str, tuple, dict[str, Any]]


def randn(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype)


def by_tokens(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    batch, heads, tokens, width = shape
    return randn(batch, tokens, heads, width, dtype=dtype).transpose(1, 2)


def angles(tokens: int, pairs: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin as slices of a table, two elements apart, as SANA-Video has them."""
    angle = torch.randn(tokens, 2 * pairs, device=DEVICE)
    return angle.cos()[:, ::2], angle.sin()[:, 1::2]


def attention_cases(small: bool) -> Iterator[Case]:
    shapes = [(1, 2, 300, 32), (2, 1, 77, 17), (1, 2, 230, 112), (1, 1, 90, 130)]
    shapes += [] if small or DRY else [(2, 70, 4096, 32), (1, 20, 16384, 112), (1, 32, 4096, 64)]
    for shape in shapes:
        for dtype in (BF16, F32):
            for draw in (by_tokens, lambda *s, dtype: randn(s[0], s[1], s[3], s[2], dtype=dtype).mT):
                qkv = [draw(*shape, dtype=dtype) for _ in range(3)]
                for channel_major in (False, True):
                    options = {"eps": 1e-15, "channel_major": channel_major}
                    meant = "cuda:channels" if channel_major else "cuda:tokens"
                    yield "relu_linear_attention", meant, tuple(qkv), options
                norms = [draw(*shape, dtype=dtype).relu() for _ in range(2)]
                options = {"eps": 1e-15, "relu": False}
                yield "relu_linear_attention", "cuda:tokens", (*qkv, *norms), options
                turned = (*qkv, None, None, *angles(shape[2], shape[3] // 2))
                if shape[3] % 2 == 0:
                    yield "relu_linear_attention", "cuda:tokens", turned, {"eps": 1e-15}
                if dtype == F32:
                    yield "relu_linear_attention", "cuda:tokens_bf16", tuple(qkv), {"eps": 1e-15}
                if dtype == F32 and shape[3] % 2 == 0:
                    yield "relu_linear_attention", "cuda:tokens_bf16", turned, {"eps": 1e-15}


def fp8_cases(small: bool) -> Iterator[Case]:
    sizes = [(1, 208, 72), (9, 80, 300), (33, 1040, 17), (128, 64, 48), (130, 64, 48)]
    sizes += [] if small or DRY else [(m, 4096, n) for m in (1, 16, 64, 128, 1024) for n in (4096, 14336)]
    for m, k, n in sizes:
        for format in (torch.float8_e4m3fn, torch.float8_e5m2):
            x, weight, bias = randn(m, k), randn(n, k).to(format), randn(n)
            meant = "cuda:stream" if m <= 128 else "cuda:decode"
            for scale in (None, torch.tensor(0.02, device=DEVICE), torch.rand(n, 1, device=DEVICE)):
                yield "fp8_linear", meant, (x, weight, scale, bias), {}


def turned(x, cos, sin):
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def attention64(q, k, v, norm_q=None, norm_k=None, cos=None, sin=None, *, eps, relu=True, **_):
    q, k, v = q.double(), k.double(), v.double()
    if relu:
        q, k = q.relu(), k.relu()
    norm_q = q if norm_q is None else norm_q.double()
    norm_k = k if norm_k is None else norm_k.double()
    if cos is not None:
        q, k = (turned(x, cos.double(), sin.double()) for x in (q, k))
    return (q @ (k.mT @ v)) / (norm_q @ norm_k.sum(-2, keepdim=True).mT + eps)


def fp8_64(x, weight, scale, bias):
    decoded = weight.double() if scale is None else weight.double() * scale.double()
    return F.linear(x.double(), decoded, bias.double())


EXACT = {"relu_linear_attention": attention64, "fp8_linear": fp8_64}


def rounding_limit(q, k, v, norm_q=None, norm_k=None, cos=None, sin=None, *, eps, **_):
    """How far each element may be off where float32 keys and values are rounded to bfloat16: (1 + u)² - 1 of the
    size of what is added up, u = 2^-8, and the error of float32 sums."""
    q, k = q.double().relu(), k.double().relu()
    norm_q, norm_k = q, k
    if cos is not None:
        q, k = (turned(x, cos.double(), sin.double()).abs() for x in (q, k))
    size = attention64(q, k, v.abs(), norm_q, norm_k, eps=eps, relu=False)
    return size * ((1 + 2.0**-8) ** 2 - 1 + 1e-5)


def rms(x: torch.Tensor) -> float:
    return x.double().square().mean().sqrt().item()


def main() -> int:
    namespace = ops()
    small = "--small" in sys.argv
    print(f"   seed {torch.seed()}")
    worst: dict[str, float] = {}
    wrong = count = 0
    for op, meant, arguments, options in [*attention_cases(small), *fp8_cases(small)]:
        high = meant.endswith("_bf16")
        counts(namespace)
        with at_quality(namespace, high):
            out = getattr(namespace, op)(*arguments, **options)
            again = getattr(namespace, op)(*arguments, **options)
        ran = counts(namespace)
        usual = getattr(torch.ops.fxrewrite, f"{op}_reference")(*arguments, **options)
        want = EXACT[op](*arguments, **options)
        if high:
            ratio = ((out - want).abs() / rounding_limit(*arguments, **options)).max().item()
            problems = {f"error {ratio:.2f} of what rounding may do": not ratio <= 1}
        else:
            ratio = rms(out - want) / max(rms(usual - want), 1e-300)
            problems = {f"error {ratio:.2f} times eager's": not ratio <= 1.25}
        problems |= {
            "NaN or inf elsewhere": not torch.equal(out.isfinite(), usual.isfinite()),
            f"ran {ran}": ran != {f"{op} {meant}": 2},
            "other bits the second time": not torch.equal(out, again),
            "other strides": out.stride() != usual.stride(),
        }
        found = [text for text, is_so in problems.items() if is_so]
        if found:
            shapes = [tuple(a.shape) for a in arguments if a is not None]
            print(f"   WRONG {op} {shapes} {arguments[0].dtype} {options}: {'; '.join(found)}")
        name = f"{op} {str(arguments[0].dtype)[6:]}" + " at high" * high
        worst[name] = max(worst.get(name, 0.0), ratio)
        wrong += bool(found)
        count += 1
    for name, ratio in worst.items():
        of_what = "of what rounding may do" if name.endswith("at high") else "times eager's"
        print(f"   {name}: error at most {ratio:.2f} {of_what}")
    print(f"   {count - wrong} passed, {wrong} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
