// Arguments of the `fp8_linear` kernels.
#pragma once

#include <cstdint>

#include "../dtype.h"
#include "../parallel.h"

namespace fx {

// out[m, n] = scale[n] · Σ_k x[m, k] · decode(weight[n, k]) + bias[n]; x, bias and out are bfloat16.
// The layout rules are those of LinearArgs.
struct Fp8LinearArgs {
  const void* x;
  const void* weight;  // one byte an element
  const void* bias;    // or null
  const float* scale;  // null is 1; element n at scale[n * scale_stride]
  void* out;
  int64_t m, n, k;
  int64_t x_stride;
  int64_t weight_stride_n, weight_stride_k;
  int64_t scale_stride;  // 0 (one for the tensor) or 1 (one for each output channel)
  Dtype weight_dtype;    // float8_e4m3fn or float8_e5m2
};

}  // namespace fx
