// For any machine: the baseline of the architecture (SSE2 on x86-64, NEON on AArch64).
#include "../kernels.inl.h"
#include "vector_isa.h"

namespace fx {

namespace {
struct PortableTag {};
// Sixteen vector registers: 2 x 4 sums, an operand of each side, and room for products.
using Portable = VectorIsa<PortableTag, 4, 2, 4, 2>;
}  // namespace

constinit const KernelTable portable_kernels = kernel_table<Portable>("portable");

}  // namespace fx
