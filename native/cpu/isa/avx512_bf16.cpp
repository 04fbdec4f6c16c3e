// AVX-512 with BF16 dot products: see avx512_bf16.h.
#include "avx512_bf16.h"

#include "../kernels.inl.h"

namespace fx {

constinit const KernelTable avx512_bf16_kernels = kernel_table<Avx512Bf16>("avx512_bf16");

}  // namespace fx
