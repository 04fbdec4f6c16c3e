// Ops through which Python asks this library what it has done, `_cuda_counters` and `_reset_cuda_counters`, and
// sets the level of this thread. They take no tensors, so they are registered for every backend.

#include "counters.h"
#include "quality.h"
#include "registration.h"

namespace fx {

namespace {

FX_CUDA_LIBRARY_FRAGMENT(m) {
  m.def("_cuda_counters() -> str");
  m.def("_reset_cuda_counters() -> ()");
  m.def("_allow_cuda_bf16_operands(bool allowed) -> ()");
  m.impl("_cuda_counters", TORCH_BOX(&counters_text));
  m.impl("_reset_cuda_counters", TORCH_BOX(&reset_counters));
  m.impl("_allow_cuda_bf16_operands", TORCH_BOX(&allow_bf16_operands));
}

}  // namespace

}  // namespace fx
