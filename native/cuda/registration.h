// Where the ops are registered: `fxrewrite` for CUDA tensors, or, for tests without a GPU, a namespace of the
// shim's own for CPU tensors.
#pragma once

#include <torch/csrc/stable/library.h>

#if defined(FXREWRITE_CUDA_SHIM)
#define FX_CUDA_LIBRARY_FRAGMENT(module) STABLE_TORCH_LIBRARY_FRAGMENT(fxrewrite_shim, module)
#define FX_CUDA_LIBRARY_IMPL(module) STABLE_TORCH_LIBRARY_IMPL(fxrewrite_shim, CPU, module)
#else
#define FX_CUDA_LIBRARY_FRAGMENT(module) STABLE_TORCH_LIBRARY_FRAGMENT(fxrewrite, module)
#define FX_CUDA_LIBRARY_IMPL(module) STABLE_TORCH_LIBRARY_IMPL(fxrewrite, CUDA, module)
#endif
