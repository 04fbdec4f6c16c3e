// An input [..., K] as the rows of a matrix, contiguous in k: without a copy wherever strides allow.
#pragma once

#include <torch/csrc/stable/ops.h>

#include "../tensor_view.h"

namespace fx {

struct Rows {
  int64_t count;
  int64_t stride;
  bool usable;  // false: no single stride describes them, or k is not contiguous
};

inline Rows rows_of(const TensorView& x) {
  const int64_t k = x.size(-1);
  Rows rows{1, k, k <= 1 || x.stride(-1) == 1};
  bool first = true;  // the innermost dimension of more than one row gives the stride
  for (int64_t d = x.dim - 2; d >= 0; --d) {
    if (x.sizes[d] != 1) {
      if (first)
        rows.stride = x.strides[d];
      else if (x.strides[d] != rows.stride * rows.count)
        rows.usable = false;
      first = false;
    }
    rows.count *= x.sizes[d];
  }
  return rows;
}

}  // namespace fx
