// The kernels of one instruction set: plain functions over plain arguments, so that the files of isa/
// include nothing of torch.
#pragma once

#include "ops/fp8_linear.h"
#include "ops/linear.h"
#include "ops/relu_linear_attention.h"
#include "ops/sdpa.h"

namespace fx {

// Each function returns the name of the algorithm that it chose, for the counters (or null).
struct KernelTable {
  const char* name;
  const char* (*linear)(const LinearArgs&, const Parallel&);
  const char* (*fp8_linear)(const Fp8LinearArgs&, const Parallel&);
  const char* (*sdpa)(const SdpaArgs&, const Parallel&);
  const char* (*relu_linear_attention)(const ReluLinearAttentionArgs&, const Parallel&);
};

extern const KernelTable portable_kernels;
#ifdef FXREWRITE_HAS_AVX2
extern const KernelTable avx2_kernels;
#endif
#ifdef FXREWRITE_HAS_AVX512
extern const KernelTable avx512_kernels;
#endif
#ifdef FXREWRITE_HAS_AVX512_BF16
extern const KernelTable avx512_bf16_kernels;
#endif
#ifdef FXREWRITE_HAS_AMX_BF16
extern const KernelTable amx_bf16_kernels;
#endif

// The best table that this machine and FXREWRITE_ISA allow. Throws as allowed_isa() does.
const KernelTable& kernels();

}  // namespace fx
