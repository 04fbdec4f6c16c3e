// AVX-512 (F, BW, DQ, VL) without BF16 instructions.
#include "../kernels.inl.h"
#include "vector_isa.h"

namespace fx {

namespace {
struct Avx512Tag {};
// Thirty-two vector registers: 6 x 4 sums, four of a panel, one of the rows.
using Avx512 = VectorIsa<Avx512Tag, 16, 6, 4, 6>;
}  // namespace

constinit const KernelTable avx512_kernels = kernel_table<Avx512>("avx512");

}  // namespace fx
