"""What this machine's CPU can do: the ceilings of a roofline, measured by the framework's own operators."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import torch

from ..report.roofline import Ceilings

_SIDE = 1024
_BUFFER = 256 << 20  # bytes: more than the caches hold
_ROUNDS = 5


@functools.cache
def measured(dtype: str) -> Ceilings:
    """The ceilings for ``dtype`` ("bfloat16", say), with as many threads as torch uses now.

    The peak is that of the framework's product of two square matrices, the bandwidth that of its sum of a
    tensor too large for the caches; the best of a few rounds each. Takes a fraction of a second.
    """
    with torch.no_grad():
        left = torch.randn(_SIDE, _SIDE, device="cpu").to(getattr(torch, dtype))
        right = left.clone()
        peak = 2 * _SIDE**3 / _least_seconds(lambda: left @ right)
        buffer = torch.ones(_BUFFER // 4, device="cpu")
        bandwidth = _BUFFER / _least_seconds(buffer.sum)
    return Ceilings(dtype, peak, bandwidth, torch.get_num_threads())


def _least_seconds(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)
