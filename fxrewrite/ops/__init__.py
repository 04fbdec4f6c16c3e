"""The operators that replace sites: schema, fake kernel, reference and implementations of each."""

from . import fp8_linear, linear, relu_linear_attention, sdpa
from .library import load_cuda, load_native

native_missing: str | None = load_native()
"""Why the native kernels are not loaded; None when they are."""

cuda_missing: str | None = load_cuda()
"""The same of the CUDA kernels."""

__all__ = ["cuda_missing", "fp8_linear", "linear", "native_missing", "relu_linear_attention", "sdpa"]
