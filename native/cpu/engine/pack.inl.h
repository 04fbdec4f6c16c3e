// Packing of the right operand of a product into panels: see gemm.inl.h for their layout.
#pragma once

#include "base.h"

namespace fx {

// Columns of a panel that starts at column `n0` of `n`.
template <class Isa>
FX_INLINE int64_t panel_width(int64_t n, int64_t n0) {
  return smaller(Isa::panel, round_up(n - n0, column_unit));
}

// Units of k (k_step elements each) in a panel.
template <class Isa, class T>
FX_INLINE int64_t panel_depth(int64_t k) {
  return divide_up(k, Isa::template k_step<T>);
}

// Sources whose columns are contiguous in k, as the rows of a weight [N, K]: load `lanes` columns,
// transpose them in registers.
template <class Isa, class T>
static void pack_along_k(typename Isa::template Panel<T>* panel, int64_t width, const T* source, int64_t stride_n,
                         int64_t k, int64_t columns) {
  using F32 = typename Isa::F32;
  constexpr int lanes = Isa::lanes, step = Isa::template k_step<T>, block = lanes * step;
  const int64_t ahead = lanes * stride_n;  // the next columns, into L2: hides memory behind the transposing
  for (int64_t n0 = 0; n0 < width; n0 += lanes) {
    const int valid = static_cast<int>(smaller(larger(columns - n0, 0), lanes));
    for (int64_t k0 = 0; k0 < k; k0 += block) {
      const int count = static_cast<int>(smaller(k - k0, block));
      F32 rows[lanes];
      if (valid == lanes && count == block) {
        FX_UNROLL
        for (int i = 0; i < lanes; ++i) {
          const T* from = source + (n0 + i) * stride_n + k0;
          __builtin_prefetch(from + ahead, 0, 2);
          rows[i] = Isa::panel_of_k(from);
        }
      } else {
        for (int i = 0; i < lanes; ++i)
          rows[i] = i < valid ? Isa::panel_of_k(source + (n0 + i) * stride_n + k0, count) : Isa::zero();
      }
      Isa::transpose(rows);
      auto* to = panel + k0 / step * width + n0;
      const int depth = static_cast<int>(divide_up(count, step));
      if (depth == lanes) {
        FX_UNROLL
        for (int i = 0; i < lanes; ++i) Isa::panel_store(to + i * width, rows[i]);
      } else {
        for (int i = 0; i < depth; ++i) Isa::panel_store(to + i * width, rows[i]);
      }
    }
  }
}

// Sources whose k are contiguous in the columns, as the rows of a transposed weight [K, N].
template <class Isa, class T>
static void pack_along_columns(typename Isa::template Panel<T>* panel, int64_t width, const T* source, int64_t stride_k,
                               int64_t k, int64_t columns) {
  using F32 = typename Isa::F32;
  constexpr int lanes = Isa::lanes, step = Isa::template k_step<T>;
  for (int64_t k0 = 0; k0 < k; k0 += step, panel += width) {
    const T* row = source + k0 * stride_k;
    const T* next = step == 2 && k0 + 1 < k ? row + stride_k : nullptr;
    int64_t n0 = 0;
    if constexpr (requires(F32(&two)[2]) { Isa::panel_of_columns(row, next, two); }) {
      for (; next != nullptr && n0 + 2 * lanes <= columns; n0 += 2 * lanes) {
        F32 two[2];
        Isa::panel_of_columns(row + n0, next + n0, two);
        Isa::panel_store(panel + n0, two[0]);
        Isa::panel_store(panel + n0 + lanes, two[1]);
      }
    }
    for (; n0 < width; n0 += lanes) {
      const int valid = static_cast<int>(smaller(larger(columns - n0, 0), lanes));
      if (valid == lanes)
        Isa::panel_store(panel + n0, Isa::panel_of_columns(row + n0, next == nullptr ? nullptr : next + n0, lanes));
      else if (valid > 0)
        Isa::panel_store(panel + n0, Isa::panel_of_columns(row + n0, next == nullptr ? nullptr : next + n0, valid));
      else
        Isa::panel_store(panel + n0, Isa::zero());
    }
  }
}

// Any strides: gather a block of columns into contiguous rows of k first.
template <class Isa, class T>
static void pack_gathered(typename Isa::template Panel<T>* panel, int64_t width, const T* source, int64_t stride_n,
                          int64_t stride_k, int64_t k, int64_t columns) {
  constexpr int64_t block = 128;
  T gathered[Isa::panel * block];
  for (int64_t k0 = 0; k0 < k; k0 += block) {
    const int64_t count = smaller(k - k0, block);
    for (int64_t n = 0; n < columns; ++n)
      for (int64_t i = 0; i < count; ++i) gathered[n * block + i] = source[n * stride_n + (k0 + i) * stride_k];
    pack_along_k<Isa>(panel + k0 / Isa::template k_step<T> * width, width, gathered, block, count, columns);
  }
}

// One panel: `columns` of the source, zeros beyond them up to `width`.
template <class Isa, class T>
static void pack_panel(typename Isa::template Panel<T>* panel, int64_t width, const T* source, int64_t stride_n,
                       int64_t stride_k, int64_t k, int64_t columns) {
  if (stride_k == 1)
    pack_along_k<Isa>(panel, width, source, stride_n, k, columns);
  else if (stride_n == 1)
    pack_along_columns<Isa>(panel, width, source, stride_k, k, columns);
  else
    pack_gathered<Isa>(panel, width, source, stride_n, stride_k, k, columns);
}

}  // namespace fx
