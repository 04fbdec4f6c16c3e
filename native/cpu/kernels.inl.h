// The table of one ISA: every op's template, instantiated for it.
#pragma once

#include "kernels.h"
#include "ops/fp8_linear.inl.h"
#include "ops/linear.inl.h"
#include "ops/relu_linear_attention.inl.h"
#include "ops/sdpa.inl.h"

namespace fx {

template <class Isa>
static constexpr KernelTable kernel_table(const char* name) {
  return {name, linear_kernel<Isa>, fp8_linear_kernel<Isa>, sdpa_kernel<Isa>, relu_linear_attention_kernel<Isa>};
}

}  // namespace fx
