"""The operators that replace sites: schema, fake kernel, reference and implementations of each."""

from . import fp8_linear, linear, relu_linear_attention, sdpa
from .library import load_native

native_missing: str | None = load_native()
"""Why the native kernels are not loaded; None when they are."""

__all__ = ["fp8_linear", "linear", "native_missing", "relu_linear_attention", "sdpa"]
