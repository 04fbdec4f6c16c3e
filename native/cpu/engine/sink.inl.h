// Sinks: where the tiles of a product go. A sink is called once for each vector of sums,
//   sink(row, column, sums, count)   count <= lanes columns are valid
// and inlined into the tile kernel: this is the engine's epilogue. `at` is the sink of a part of the product.
#pragma once

#include "base.h"

namespace fx {

// C = sums
template <class Isa>
struct StoreTo {
  float* c;
  int64_t stride;

  FX_MEMBER StoreTo at(int64_t row, int64_t column) const { return {c + row * stride + column, stride}; }

  FX_MEMBER void operator()(int64_t row, int64_t column, typename Isa::F32 sums, int count) const {
    float* to = c + row * stride + column;
    if (count == Isa::lanes)
      Isa::store(to, sums);
    else
      Isa::store(to, sums, count);
  }
};

// C += sums
template <class Isa>
struct AddTo {
  float* c;
  int64_t stride;

  FX_MEMBER AddTo at(int64_t row, int64_t column) const { return {c + row * stride + column, stride}; }

  FX_MEMBER void operator()(int64_t row, int64_t column, typename Isa::F32 sums, int count) const {
    float* to = c + row * stride + column;
    if (count == Isa::lanes)
      Isa::store(to, Isa::load(to) + sums);
    else
      Isa::store(to, Isa::load(to, count) + sums, count);
  }
};

// y = scale · (earlier + sums) + bias, rounded once to the type of y. `earlier` are the sums of former
// blocks of k; scale and bias have an element for each column (scale possibly one for all).
template <class Isa, class T>
struct Finish {
  T* y;
  int64_t stride;
  const T* bias;         // or null
  const float* scale;    // or null
  int64_t scale_stride;  // 0 or 1
  const float* earlier;  // or null
  int64_t earlier_stride;

  FX_MEMBER Finish at(int64_t row, int64_t column) const {
    return {y + row * stride + column,
            stride,
            bias == nullptr ? nullptr : bias + column,
            scale == nullptr ? nullptr : scale + column * scale_stride,
            scale_stride,
            earlier == nullptr ? nullptr : earlier + row * earlier_stride + column,
            earlier_stride};
  }

  FX_MEMBER void operator()(int64_t row, int64_t column, typename Isa::F32 sums, int count) const {
    if (earlier != nullptr) sums = sums + Isa::load(earlier + row * earlier_stride + column, count);
    if (scale != nullptr) sums = sums * (scale_stride == 0 ? Isa::splat(*scale) : Isa::load(scale + column, count));
    if (bias != nullptr) sums = sums + Isa::load(bias + column, count);
    T* to = y + row * stride + column;
    if (count == Isa::lanes)
      Isa::store(to, sums);
    else
      Isa::store(to, sums, count);
  }
};

}  // namespace fx
