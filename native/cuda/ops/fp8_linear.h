// `fp8_linear` on the GPU: its arguments and its launches.
#pragma once

#include "../runtime.h"
#include "dtype.h"

namespace fx {

// out[m, n] = scale[n] · Σ_k x[m, k] · decode(weight[n, k]) + bias[n]; x, bias and out are bfloat16.
// Weight rows and x rows are multiples of 16 bytes, and so are their addresses.
struct Fp8LinearArgs {
  const void *x, *weight, *bias, *scale;  // bias and scale may be null
  void* out;                              // [m, n], contiguous
  int64_t m, n, k;
  int64_t x_stride, weight_stride, bias_stride, scale_stride;  // of rows, in elements; scale's is 0 for one of all
  Dtype scale_dtype;
  bool e5m2;  // else e4m3fn
};

// K is a multiple of what a thread loads at once.
constexpr int64_t fp8_together = 16;
// Rows of x up to which the weight is decoded on its way into the tensor cores. With more, decoding it once and
// the framework's GEMM take less time (by the figures of both, not yet by a measurement).
constexpr int64_t fp8_most_rows = 128;

void run_fp8_linear(const Fp8LinearArgs& args, int multiprocessors, Stream stream);

// out[n, k] = scale[n] · decode(weight[n, k]), rounded to bfloat16; out is contiguous. `x`, `m` and `bias` are unused.
void run_fp8_decode(const Fp8LinearArgs& args, int multiprocessors, Stream stream);

}  // namespace fx
