// Arguments of the `fp8_linear` kernels.
#pragma once

#include <cstdint>

#include "../dtype.h"
#include "../parallel.h"

namespace fx {

// The scale of weight[n, k] is values[n / block_n · stride_n + k / block_k · stride_k].
struct WeightScale {
  const float* values;  // null is 1
  int64_t stride_n, stride_k;
  int64_t block_n, block_k;

  // Is there one element for each row of the weight, or one for all? Then it scales the sums.
  bool of_rows() const { return values == nullptr || (stride_k == 0 && (stride_n == 0 || block_n == 1)); }
};

// out[m, n] = Σ_k x[m, k] · scale[n, k] · decode(weight[n, k]) + bias[n]; x, bias and out are of one dtype,
// bfloat16, float16 or float32. The layout rules are those of LinearArgs.
struct Fp8LinearArgs {
  const void* x;
  const void* weight;  // one byte an element
  const void* bias;    // or null
  void* out;
  WeightScale scale;
  int64_t m, n, k;
  int64_t x_stride;
  int64_t weight_stride_n, weight_stride_k;
  Dtype dtype;
  Dtype weight_dtype;  // one of the float8 formats
};

}  // namespace fx
