// AVX2 with FMA and F16C: x86-64 machines since 2013.
#include "../kernels.inl.h"
#include "vector_isa.h"

namespace fx {

namespace {
struct Avx2Tag {};
// Sixteen vector registers: 6 x 2 sums, two of a panel, one of the rows.
using Avx2 = VectorIsa<Avx2Tag, 8, 6, 2, 2>;
}  // namespace

constinit const KernelTable avx2_kernels = kernel_table<Avx2>("avx2");

}  // namespace fx
