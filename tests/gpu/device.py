"""Where the scripts of this folder run: on the GPU, or in the dry run on the CPU with the shim's kernels."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

import fxrewrite
import fxrewrite.ops

DRY = bool(os.environ.get("FXREWRITE_DRY"))
DEVICE = "cpu" if DRY else "cuda"


def ops() -> Any:
    """The namespace of the CUDA ops. Raises RuntimeError where their kernels are not loaded."""
    if DRY:
        from tests.cuda.building import BUILD

        (library,) = BUILD.glob("**/libfxrewrite_cuda_shim.so")
        torch.ops.load_library(str(library))
        return torch.ops.fxrewrite_shim
    if fxrewrite.ops.cuda_missing is not None or not torch.cuda.is_available():
        raise RuntimeError(fxrewrite.ops.cuda_missing or "no GPU is available")
    return torch.ops.fxrewrite


@contextlib.contextmanager
def at_quality(namespace: Any, high: bool) -> Iterator[None]:
    """At quality "high", or as it is; the shim's library is told by hand."""
    if DRY:
        namespace._allow_cuda_bf16_operands(high)
        try:
            yield
        finally:
            namespace._allow_cuda_bf16_operands(False)
    else:
        with fxrewrite.quality("high" if high else "lossless"):
            yield


def counts(namespace: Any) -> dict[str, int]:
    """Calls by "op implementation" since the last look."""
    lines = [line.split("\t") for line in namespace._cuda_counters().splitlines()]
    namespace._reset_cuda_counters()
    return {f"{op} {implementation}": int(calls) for op, implementation, calls in lines}


def microseconds(call: Callable[[], Any], *, repeats: int = 30) -> float:
    """Median time of ``call`` on the device, the second cache swept before each."""
    if DRY:
        started = time.perf_counter()
        call()
        return 1e6 * (time.perf_counter() - started)
    sweep = torch.empty(128 << 20, dtype=torch.uint8, device=DEVICE)
    for _ in range(3):
        call()
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for start, stop in pairs:
        sweep.zero_()
        start.record()
        call()
        stop.record()
    torch.cuda.synchronize()
    return 1e3 * sorted(start.elapsed_time(stop) for start, stop in pairs)[repeats // 2]
