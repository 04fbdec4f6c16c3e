"""SANA transformers of diffusers, rewritten on the GPU, against themselves: ``python -m tests.gpu.model``.

SANA-Video's turns its features. In the dry run they are analysed on fake CUDA tensors instead, and their CUDA
implementations are named.
"""

from __future__ import annotations

import sys
from collections import Counter

import torch

import fxrewrite
from fxrewrite.ops.counters import counters, reset_counters
from tests.models import MODELS
from tests.support.devices import on_fake

from .device import DEVICE, DRY, microseconds


def main() -> int:
    return max(right(name) for name in ("sana", "sana-video"))


def right(name: str) -> int:
    model, args, kwargs = MODELS[name].make()
    if DRY:
        if torch.version.cuda is None:
            from tests.cuda.building import BUILD

            (guard,) = BUILD.glob("**/libfxrewrite_absent_device.so")
            torch.ops.load_library(str(guard))
        with torch.no_grad():
            report = fxrewrite.analyze(*on_fake("cuda", model, args, kwargs))
        matched = Counter(site.implementation for site in report.sites if site.matched)
        print(f"   {name} would run: {dict(matched)}")
        return 0 if any(name.startswith("cuda:") for name in matched) else 1
    move = lambda value: value.to(DEVICE) if isinstance(value, torch.Tensor) else value  # noqa: E731
    model = model.to(DEVICE)
    args, kwargs = tuple(map(move, args)), {name: move(value) for name, value in kwargs.items()}
    with torch.no_grad():
        want = _first(model(*args, **kwargs))
        fast = fxrewrite.rewrite(model, args, kwargs)
        reset_counters()
        got = _first(fast(*args, **kwargs))
        ran = {f"{op} {name}": calls for op, names in counters().items() for name, calls in names.items()}
        times = [microseconds(lambda m=m: m(*args, **kwargs)) for m in (model, fast)]
    error = ((got - want).double().norm() / want.double().norm()).item()
    print(
        f"   {name} ran: {ran}; differs by {error:.1e}; {times[0]:.0f} µs eager, {times[1]:.0f} µs rewritten"
    )
    return 0 if error < 0.02 and any("cuda:" in name for name in ran) else 1


def _first(out):
    return out if isinstance(out, torch.Tensor) else out[0]


if __name__ == "__main__":
    sys.exit(main())
