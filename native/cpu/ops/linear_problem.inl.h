// A linear layer over any weight type that the engine reads.
#pragma once

#include "../engine/epilogue.inl.h"

namespace fx {

template <class X, class W>
struct LinearProblem {
  const X* x;
  const W* weight;
  const X* bias;         // or null
  const float* scale;    // or null
  int64_t scale_stride;  // 0 or 1
  X* y;                  // [m, n], row-major
  int64_t m, n, k;
  int64_t x_stride;
  int64_t weight_stride_n, weight_stride_k;
  Activation activation = Activation::none;
  RowOperand<X> multiply = {}, residual = {};

  FX_MEMBER Epilogue<X> epilogue() const { return {y, n, bias, scale, scale_stride, activation, multiply, residual}; }
};

}  // namespace fx
