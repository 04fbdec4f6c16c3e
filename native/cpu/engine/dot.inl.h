// The dot form of y = x·Wᵀ, for few rows of x: each row of W is read once, in place, as a stream.
// Vectors run along k; a few rows of x meet a few of W at once, and each sum is folded at the end.
#pragma once

#include "base.h"

namespace fx {

// Rows of x at once: fewer where decoding needs registers too.
template <class Isa, class W>
constexpr int dot_rows = Isa::template chunks_at_once<W> > 1 && Isa::dot_rows > 4 ? 4 : Isa::dot_rows;

// sums[r][c] = Σ_k x[r, k] · w[c, k]
template <class Isa, int Rows, int Columns, class X, class W>
FX_INLINE void dot_tile(float (*sums)[Isa::lanes], const X* x, int64_t x_stride, const W* w, int64_t w_stride,
                        int64_t k) {
  constexpr int size = Isa::template chunk_size<W>, parts = Isa::template chunks_at_once<W>, step = size * parts;
  constexpr int64_t ahead = 1024 / sizeof(W);  // elements; the hardware prefetches too late across pages
  typename Isa::F32 total[Rows][Columns];
  FX_UNROLL
  for (int r = 0; r < Rows; ++r) FX_UNROLL
  for (int c = 0; c < Columns; ++c) total[r][c] = Isa::zero();
  typename Isa::template Chunk<W> wide[Columns][parts];
  typename Isa::template Chunk<X> row[1];

  int64_t k0 = 0;
  for (; k0 + step <= k; k0 += step) {
    FX_UNROLL
    for (int c = 0; c < Columns; ++c) {
      const W* from = w + c * w_stride + k0;
      __builtin_prefetch(from + ahead);
      Isa::chunks(from, wide[c]);
    }
    FX_UNROLL
    for (int r = 0; r < Rows; ++r) FX_UNROLL
    for (int p = 0; p < parts; ++p) {
      Isa::chunks(x + r * x_stride + k0 + p * size, row);
      FX_UNROLL
      for (int c = 0; c < Columns; ++c) total[r][c] = Isa::dot(wide[c][p], row[0], total[r][c]);
    }
  }
  if (k0 < k) {
    const int rest = static_cast<int>(k - k0);
    FX_UNROLL
    for (int c = 0; c < Columns; ++c) Isa::chunks(w + c * w_stride + k0, rest, wide[c]);
    FX_UNROLL
    for (int r = 0; r < Rows; ++r) FX_UNROLL
    for (int p = 0; p < parts; ++p) {
      const int count = static_cast<int>(smaller(larger(rest - p * size, 0), size));
      Isa::chunks(x + r * x_stride + k0 + p * size, count, row);
      FX_UNROLL
      for (int c = 0; c < Columns; ++c) total[r][c] = Isa::dot(wide[c][p], row[0], total[r][c]);
    }
  }
  FX_UNROLL
  for (int r = 0; r < Rows; ++r) FX_UNROLL
  for (int c = 0; c < Columns; ++c) sums[r][c] = Isa::sum(total[r][c]);
}

template <class Isa, int Rows, int Columns, class X, class W>
static void dot_rows_by_columns(float (*sums)[Isa::lanes], const X* x, int64_t x_stride, const W* w, int64_t w_stride,
                                int64_t k) {
  dot_tile<Isa, Rows, Columns>(sums, x, x_stride, w, w_stride, k);
}

// Up to dot_columns rows of W with all m rows of x, while they are in the cache.
template <class Isa, int Columns, class X, class W>
static void dot_all_rows(float (*sums)[Isa::lanes], const X* x, int64_t x_stride, const W* w, int64_t w_stride,
                         int64_t m, int64_t k) {
  constexpr int rows = dot_rows<Isa, W>;
  for (int64_t r = 0; r < m; r += rows) {
    float (*to)[Isa::lanes] = sums + r;
    const X* from = x + r * x_stride;
    switch (smaller(m - r, rows)) {
      case 1:
        dot_rows_by_columns<Isa, 1, Columns>(to, from, x_stride, w, w_stride, k);
        break;
      case 2:
        dot_rows_by_columns<Isa, 2, Columns>(to, from, x_stride, w, w_stride, k);
        break;
      case 3:
        dot_rows_by_columns<Isa, 3, Columns>(to, from, x_stride, w, w_stride, k);
        break;
      case 4:
        dot_rows_by_columns<Isa, 4, Columns>(to, from, x_stride, w, w_stride, k);
        break;
      case 5:
        dot_rows_by_columns<Isa, 5, Columns>(to, from, x_stride, w, w_stride, k);
        break;
      default:
        dot_rows_by_columns<Isa, rows, Columns>(to, from, x_stride, w, w_stride, k);
        break;
    }
  }
}

// Columns [0, n) of y: `lanes` of them at a time go to `sink`, which is called as in sink.inl.h.
// m is at most max_dot_rows. W is contiguous in k.
constexpr int max_dot_rows = 64;

template <class Isa, class X, class W, class Sink>
static void dot_columns(const X* x, int64_t x_stride, const W* w, int64_t w_stride, int64_t m, int64_t n, int64_t k,
                        const Sink& sink) {
  constexpr int lanes = Isa::lanes, group = Isa::dot_columns;
  float sums[max_dot_rows][lanes];
  for (int64_t n0 = 0; n0 < n; n0 += lanes) {
    const int columns = static_cast<int>(smaller(n - n0, lanes));
    int c = 0;
    for (; c + group <= columns; c += group)
      dot_all_rows<Isa, group>(reinterpret_cast<float (*)[lanes]>(&sums[0][c]), x, x_stride, w + (n0 + c) * w_stride,
                               w_stride, m, k);
    for (; c < columns; ++c)
      dot_all_rows<Isa, 1>(reinterpret_cast<float (*)[lanes]>(&sums[0][c]), x, x_stride, w + (n0 + c) * w_stride,
                           w_stride, m, k);
    for (int64_t r = 0; r < m; ++r) sink(r, n0, Isa::load(sums[r]), columns);
  }
}

}  // namespace fx
