// Ops through which Python asks the library what it is doing: `_isa`, `_detected_isa`, `_amx_obstacle`,
// `_counters`, `_reset_counters`; and through which it sets the level of this thread, `_allow_bf16_operands`. They
// take no tensors, so they are registered for every backend.

#include <torch/csrc/stable/library.h>

#include <string>

#include "counters.h"
#include "isa.h"
#include "kernels.h"
#include "quality.h"

namespace fx {

namespace {

std::string active_isa_name() { return kernels().name; }
std::string detected_isa_name() { return name_of(detected_isa()); }
std::string amx_obstacle_text() { return amx_obstacle(); }

STABLE_TORCH_LIBRARY_FRAGMENT(fxrewrite, m) {
  m.def("_isa() -> str");
  m.def("_detected_isa() -> str");
  m.def("_amx_obstacle() -> str");
  m.def("_counters() -> str");
  m.def("_reset_counters() -> ()");
  m.def("_allow_bf16_operands(bool allowed) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(fxrewrite, CompositeExplicitAutograd, m) {
  m.impl("_isa", TORCH_BOX(&active_isa_name));
  m.impl("_detected_isa", TORCH_BOX(&detected_isa_name));
  m.impl("_amx_obstacle", TORCH_BOX(&amx_obstacle_text));
  m.impl("_counters", TORCH_BOX(&counters_text));
  m.impl("_reset_counters", TORCH_BOX(&reset_counters));
  m.impl("_allow_bf16_operands", TORCH_BOX(&allow_bf16_operands));
}

}  // namespace

}  // namespace fx
