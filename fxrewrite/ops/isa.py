"""Which instruction set the native kernels run on."""

from __future__ import annotations

import functools

import torch

from .library import call_native, load_native


@functools.cache
def active_isa() -> str:
    """The instruction set of the kernels in use; "none" where the native library is not loaded."""
    return str(call_native("_isa")) if load_native() is None else "none"


@functools.cache
def detected_isa() -> str:
    """The best instruction set that this machine has, whatever FXREWRITE_ISA allows."""
    return str(call_native("_detected_isa")) if load_native() is None else "none"


@functools.cache
def multiplies_float16() -> bool:
    """May this machine have the instructions that the framework's float16 GEMM stands on?"""
    read = getattr(torch.cpu, "get_capabilities", None)
    if read is None:  # this torch does not tell
        return True
    found = read()
    return any(found.get(name, False) for name in ("avx512_fp16", "amx_fp16", "avx_ne_convert"))


@functools.cache
def amx_obstacle() -> str | None:
    """Why this machine does not run the kernels of level amx_bf16, in a few words; None where it does."""
    if load_native() is not None:
        return "the native library is not loaded"
    return str(call_native("_amx_obstacle")) or None
