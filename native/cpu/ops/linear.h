// Arguments of the `linear` kernels.
#pragma once

#include <cstdint>

#include "../activation.h"
#include "../dtype.h"
#include "../parallel.h"

namespace fx {

// An operand of the epilogue: row r at r / group · group_stride + r % group · row_stride, its n columns
// contiguous. Strides are in elements.
struct RowOperandArgs {
  const void* data = nullptr;  // or null
  int64_t group = 1, group_stride = 0, row_stride = 0;
};

// out[m, n] = activation(Σ_k x[m, k] · weight[n, k] + bias[n]) · multiply[m, n] + residual[m, n]; all are of one
// dtype, bfloat16, float16 or float32. Rows of x are contiguous in k, rows of out dense. Weight strides are in
// elements, any value. `bf16_operands`: float32 x and weight may be rounded to bfloat16 where products of it are
// faster; the sums stay fp32, and the epilogue float32.
struct LinearArgs {
  const void* x;
  const void* weight;
  const void* bias;  // or null
  void* out;         // [m, n], row-major
  int64_t m, n, k;
  int64_t x_stride;  // between rows of x
  int64_t weight_stride_n, weight_stride_k;
  Dtype dtype;
  Activation activation;
  RowOperandArgs multiply, residual;
  bool bf16_operands;
};

}  // namespace fx
