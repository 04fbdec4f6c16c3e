// What is done to the sums of a linear layer before they are stored, once, while they are in registers or L1.
#pragma once

#include "activate.inl.h"

namespace fx {

// An operand of the epilogue as rows, contiguous in the columns: row r at r / group · group_stride +
// r % group · row_stride. A gate of one row for each batch has row_stride 0. Or null.
template <class T>
struct RowOperand {
  const T* data = nullptr;
  int64_t group = 1, group_stride = 0, row_stride = 0;

  FX_MEMBER const T* row(int64_t r) const {
    return data == nullptr ? nullptr : data + r / group * group_stride + r % group * row_stride;
  }
};

// y = activation(scale · sums + bias) · multiply + residual, rounded once to the type of y. Scale and bias
// have an element for each column (scale possibly one for all).
template <class T>
struct Epilogue {
  T* y;
  int64_t stride;
  const T* bias;         // or null
  const float* scale;    // or null
  int64_t scale_stride;  // 0 or 1
  Activation activation;
  RowOperand<T> multiply, residual;

  FX_MEMBER bool at_most_bias() const {
    return scale == nullptr && activation == Activation::none && multiply.data == nullptr && residual.data == nullptr;
  }
};

// One row of an Epilogue.
template <class Isa, class T>
struct EpilogueRow {
  T* y;
  const T *multiply, *residual;

  FX_MEMBER EpilogueRow(const Epilogue<T>& e, int64_t row)
      : y(e.y + row * e.stride), multiply(e.multiply.row(row)), residual(e.residual.row(row)) {}

  FX_MEMBER void store(const Epilogue<T>& e, int64_t column, typename Isa::F32 sums, int count) const {
    if (e.scale != nullptr)
      sums = sums * (e.scale_stride == 0 ? Isa::splat(*e.scale) : Isa::load(e.scale + column, count));
    if (e.bias != nullptr) sums = sums + Isa::load(e.bias + column, count);
    sums = activate<Isa>(e.activation, sums);
    if (multiply != nullptr) sums = sums * Isa::load(multiply + column, count);
    if (residual != nullptr) sums = sums + Isa::load(residual + column, count);
    if (count == Isa::lanes)
      Isa::store(y + column, sums);
    else
      Isa::store(y + column, sums, count);
  }
};

// Rows [row, row + rows), columns [column, column + columns) of y from their sums, row r at sums + r·stride.
template <class Isa, class T>
[[gnu::noinline]] static void finish_rows(const Epilogue<T>& e, const float* sums, int64_t stride, int64_t row,
                                          int64_t rows, int64_t column, int64_t columns) {
  constexpr int lanes = Isa::lanes;
  const bool add_bias = e.bias != nullptr, at_most_bias = e.at_most_bias();
  for (int64_t r = 0; r < rows; ++r, sums += stride) {
    const EpilogueRow<Isa, T> to(e, row + r);
    int64_t c = 0;
    if (at_most_bias) {  // the most frequent: without a question for each vector
      for (; c + 2 * lanes <= columns; c += 2 * lanes) {
        typename Isa::F32 first = Isa::load(sums + c), second = Isa::load(sums + c + lanes);
        if (add_bias) first += Isa::load(e.bias + column + c), second += Isa::load(e.bias + column + c + lanes);
        Isa::store_two(to.y + column + c, first, second);
      }
    }
    for (; c + lanes <= columns; c += lanes) to.store(e, column + c, Isa::load(sums + c), lanes);
    if (c < columns)
      to.store(e, column + c, Isa::load(sums + c, static_cast<int>(columns - c)), static_cast<int>(columns - c));
  }
}

// Has the cache lines that finish_rows will touch fetched meanwhile. Rows are far apart in memory, which
// hardware does not foresee.
template <class T>
FX_INLINE void expect_rows(const Epilogue<T>& e, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  constexpr int64_t line = 64 / sizeof(T);
  for (int64_t r = row; r < row + rows; ++r) {
    const T *y = e.y + r * e.stride, *multiply = e.multiply.row(r), *residual = e.residual.row(r);
    for (int64_t c = column; c < column + columns; c += line) {
      __builtin_prefetch(y + c, 1, 3);
      if (multiply != nullptr) __builtin_prefetch(multiply + c, 0, 3);
      if (residual != nullptr) __builtin_prefetch(residual + c, 0, 3);
    }
  }
}

// The epilogue as a sink (see sink.inl.h) of columns from `first` on.
template <class Isa, class T>
struct FinishTo {
  const Epilogue<T>& epilogue;
  int64_t first;

  FX_MEMBER void operator()(int64_t row, int64_t column, typename Isa::F32 sums, int count) const {
    EpilogueRow<Isa, T>(epilogue, row).store(epilogue, first + column, sums, count);
  }
};

}  // namespace fx
