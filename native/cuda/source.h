// A strided input as kernels and op wrappers see it.
#pragma once

#include <cstdint>

namespace fx {

// One [batch, heads, tokens, width] input of a kernel: bfloat16 or float32, any strides (in elements).
struct Source {
  const void* data;
  int64_t strides[4];
  bool wide;      // float32
  bool by_token;  // tokens, not the width, are contiguous in memory
  bool vectors;   // eight neighbours in memory may be loaded at once
  bool relu;      // to be applied
  bool turned;    // pairs of the width are turned after that, and rounded to the dtype
};

}  // namespace fx
