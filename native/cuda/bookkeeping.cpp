// Ops through which Python asks this library what it has done: `_cuda_counters`, `_reset_cuda_counters`. They
// take no tensors, so they are registered for every backend.

#include "counters.h"
#include "registration.h"

namespace fx {

namespace {

FX_CUDA_LIBRARY_FRAGMENT(m) {
  m.def("_cuda_counters() -> str");
  m.def("_reset_cuda_counters() -> ()");
  m.impl("_cuda_counters", TORCH_BOX(&counters_text));
  m.impl("_reset_cuda_counters", TORCH_BOX(&reset_counters));
}

}  // namespace

}  // namespace fx
