// A float32 linear layer whose products have bf16 operands: x and W are rounded to nearest as they are read, once
// for each panel; sums and epilogue are float. For ISAs that multiply bf16, at quality "high".
#pragma once

#include "linear_driver.inl.h"

namespace fx {

struct RoundedProblem : LinearProblem<rounded, rounded, float> {
  using Operand = bf16;

  template <class Isa>
  FX_MEMBER void pack(void* packed, int64_t column, int64_t columns, int64_t k_first, int64_t depth) const {
    const rounded* from = weight + column * weight_stride_n + k_first * weight_stride_k;
    gemm::pack<Isa, bf16>(packed, from, weight_stride_n, weight_stride_k, depth, columns);
  }

  template <class Isa>
  FX_MEMBER OperandRows<bf16> rows_of_weight(int64_t row, int64_t rows, int64_t k_first, int64_t depth) const {
    return rounded_rows<Isa>(weight + row * weight_stride_n + k_first, weight_stride_n, rows, depth);
  }

  template <class Isa>
  FX_MEMBER OperandRows<bf16> rows_of_x(int64_t row, int64_t rows, int64_t k_first, int64_t depth) const {
    return rounded_rows<Isa>(x + row * x_stride + k_first, x_stride, rows, depth);
  }

  template <class Isa>
  static OperandRows<bf16> rounded_rows(const rounded* from, int64_t from_stride, int64_t rows, int64_t depth) {
    constexpr int lanes = Isa::lanes;
    const int64_t stride = round_up(depth, 64) + 32;  // an odd number of cache lines: rows spread over L1's sets
    auto* to = static_cast<bf16*>(scratch(Scratch::activations, sizeof(bf16) * static_cast<size_t>(rows * stride)));
    for (int64_t r = 0; r < rows; ++r) {
      const float* row = &from[r * from_stride].value;
      bf16* out = to + r * stride;
      int64_t i = 0;
      for (; i + 2 * lanes <= depth; i += 2 * lanes)
        Isa::store_two(out + i, Isa::load(row + i), Isa::load(row + i + lanes));
      for (; i < depth; i += lanes) {
        const int count = static_cast<int>(smaller(depth - i, lanes));
        Isa::store(out + i, Isa::load(row + i, count), count);
      }
    }
    return {to, stride};
  }
};

}  // namespace fx
