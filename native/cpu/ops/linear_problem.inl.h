// A linear layer over any weight type that the engine reads.
#pragma once

#include "../engine/epilogue.inl.h"
#include "../engine/gemm.inl.h"

namespace fx {

// Rows of an operand as products read them: contiguous, row r at values + r · stride. Those that are wanted next
// lie `ahead` in memory (0: not there).
template <class X>
struct OperandRows {
  const X* values;
  int64_t stride, ahead = 0;
};

// Products are of X; y and what its epilogue takes are of Y.
template <class X, class W, class Y = X>
struct LinearProblem {
  using Operand = X;
  using Output = Y;

  const X* x;
  const W* weight;
  const Y* bias;         // or null
  const float* scale;    // or null
  int64_t scale_stride;  // 0 or 1
  Y* y;                  // [m, n], row-major
  int64_t m, n, k;
  int64_t x_stride;
  int64_t weight_stride_n, weight_stride_k;
  Activation activation = Activation::none;
  RowOperand<Y> multiply = {}, residual = {};

  // Packs k in [k_first, k_first + depth) of columns [column, column + columns) of Wᵀ, as the engine takes them.
  template <class Isa>
  FX_MEMBER void pack(void* packed, int64_t column, int64_t columns, int64_t k_first, int64_t depth) const {
    const W* from = weight + column * weight_stride_n + k_first * weight_stride_k;
    gemm::pack<Isa, X>(packed, from, weight_stride_n, weight_stride_k, depth, columns);
  }

  // k in [k_first, k_first + depth) of rows [row, row + rows) of a row-major W; they stand until the next call.
  template <class Isa>
  FX_MEMBER OperandRows<X> rows_of_weight(int64_t row, int64_t rows, int64_t k_first, int64_t /*depth*/) const {
    return {weight + row * weight_stride_n + k_first, weight_stride_n, rows * weight_stride_n};
  }

  // The same of x.
  template <class Isa>
  FX_MEMBER OperandRows<X> rows_of_x(int64_t row, int64_t /*rows*/, int64_t k_first, int64_t /*depth*/) const {
    return {x + row * x_stride + k_first, x_stride};
  }

  FX_MEMBER Epilogue<Y> epilogue() const { return {y, n, bias, scale, scale_stride, activation, multiply, residual}; }
};

}  // namespace fx
