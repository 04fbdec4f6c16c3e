// Sinks: where the tiles of a product go. A sink is called once for each vector of sums,
//   sink(row, column, sums, count)   count <= lanes columns are valid
// and inlined into the tile kernel. `at` is the sink of a part of the product. See also epilogue.inl.h.
// One that has whole_row(row, sums, columns) gets all vectors of a row of the panel at once instead.
#pragma once

#include "base.h"

namespace fx {

// C = sums
template <class Isa>
struct StoreTo {
  float* c;
  int64_t stride;

  FX_MEMBER StoreTo at(int64_t row, int64_t column) const { return {c + row * stride + column, stride}; }
  FX_MEMBER float* matrix(int64_t row, int64_t column) const { return c + row * stride + column; }

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

}  // namespace fx
