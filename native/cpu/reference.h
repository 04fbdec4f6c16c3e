// The way out of every op: what no kernel takes, the op's own Python reference computes, and what is
// wrong with the inputs, it says.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <array>

#include "counters.h"

namespace fx {

// Calls `name` through the dispatcher. The inputs are taken from `stack`, the result is left in [0].
// Throws std::runtime_error with the callee's message.
void call_dispatcher(const char* name, StableIValue* stack);

// Returns `fxrewrite::<op>_reference(args...)` and counts it. `qualified` is that full name.
// The arguments must be of the schema's C++ types, in its order (optionals as std::optional).
template <class... Args>
torch::stable::Tensor call_reference(const char* op, const char* qualified, const Args&... args) {
  count(op, "reference");
  std::array<StableIValue, sizeof...(Args)> stack{torch::stable::detail::from(args)...};
  call_dispatcher(qualified, stack.data());
  return torch::stable::detail::to<torch::stable::Tensor>(stack[0]);
}

}  // namespace fx
