#include "kernels.h"

#include "isa.h"

namespace fx {

namespace {

const KernelTable& choose(Isa allowed) {
#ifdef FXREWRITE_HAS_AMX_BF16
  if (allowed >= Isa::amx_bf16) return amx_bf16_kernels;
#endif
#ifdef FXREWRITE_HAS_AVX512_BF16
  if (allowed >= Isa::avx512_bf16) return avx512_bf16_kernels;
#endif
#ifdef FXREWRITE_HAS_AVX512
  if (allowed >= Isa::avx512) return avx512_kernels;
#endif
#ifdef FXREWRITE_HAS_AVX2
  if (allowed >= Isa::avx2) return avx2_kernels;
#endif
  static_cast<void>(allowed);
  return portable_kernels;
}

}  // namespace

const KernelTable& kernels() {
  static const KernelTable& table = choose(allowed_isa());
  return table;
}

}  // namespace fx
