// Arguments of the `linear` kernels.
#pragma once

#include <cstdint>

#include "../dtype.h"
#include "../parallel.h"

namespace fx {

// out[m, n] = Σ_k x[m, k] · weight[n, k] + bias[n]; x, weight, bias and out are of one dtype, bfloat16 or
// float32. Rows of x are contiguous in k, rows of out dense. Weight strides are in elements, any value.
struct LinearArgs {
  const void* x;
  const void* weight;
  const void* bias;  // or null
  void* out;         // [m, n], row-major
  int64_t m, n, k;
  int64_t x_stride;  // between rows of x
  int64_t weight_stride_n, weight_stride_k;
  Dtype dtype;
};

}  // namespace fx
