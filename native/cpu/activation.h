// Activations of a linear layer's epilogue, by name.
#pragma once

#include <cstdint>

namespace fx {

// x·sigmoid(1.702·x) is quick_gelu; gelu is the exact one.
enum class Activation : uint8_t { none, relu, gelu, gelu_tanh, silu, quick_gelu };

}  // namespace fx
