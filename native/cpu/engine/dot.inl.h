// The dot form of y = x·Wᵀ, for few rows of x: each row of W is read once, in place, as a stream.
// Vectors run along k; a few rows of x meet a few of W at once, and the lanes of each sum are added at the end.
#pragma once

#include "base.h"

namespace fx {

// Beyond these rows of x the form never pays; it bounds the working memory.
constexpr int max_dot_rows = 32;

// Rows of x at once: fewer where decoding W needs registers too.
template <class Isa, class W>
constexpr int dot_rows = (Isa::template chunks_at_once<W>) == 1 || Isa::dot_rows < 4 ? Isa::dot_rows : 4;

// Where sums go, the lanes still apart: that of row r of x and row c of W at + r · row + c · column.
template <class F32>
struct DotSums {
  F32* at;
  int64_t row, column;
};

// to[r, c] (+)= Σ_k x[r, k] · w[c, k]. W is fetched `ahead` of its use, into L2 only: as far as memory's latency, and
// without taking L1's few miss buffers.
template <class Isa, int Rows, int Columns, class X, class W>
[[gnu::noinline]] static void dot_tile(const DotSums<typename Isa::F32>& to, bool add, const X* x, int64_t x_stride,
                                       const W* w, int64_t w_stride, int64_t k, int64_t ahead) {
  constexpr int size = Isa::template chunk_size<W>, parts = Isa::template chunks_at_once<W>, step = size * parts;
  typename Isa::F32 sums[Rows][Columns];
  FX_UNROLL
  for (int r = 0; r < Rows; ++r) {
    FX_UNROLL
    for (int c = 0; c < Columns; ++c) sums[r][c] = Isa::zero();
  }
  typename Isa::template Chunk<W> wide[Columns][parts];
  typename Isa::template Chunk<X> row[1];

  int64_t k0 = 0;
  for (; k0 + step <= k; k0 += step) {
    FX_UNROLL
    for (int c = 0; c < Columns; ++c) {
      const W* from = w + c * w_stride + k0;
      __builtin_prefetch(from + ahead, 0, 2);
      Isa::chunks(from, wide[c]);
    }
    FX_UNROLL
    for (int r = 0; r < Rows; ++r) {
      FX_UNROLL
      for (int p = 0; p < parts; ++p) {
        Isa::chunks(x + r * x_stride + k0 + p * size, row);
        FX_UNROLL
        for (int c = 0; c < Columns; ++c) sums[r][c] = Isa::dot(wide[c][p], row[0], sums[r][c]);
      }
    }
  }
  if (k0 < k) {
    const int rest = static_cast<int>(k - k0);
    FX_UNROLL
    for (int c = 0; c < Columns; ++c) Isa::chunks(w + c * w_stride + k0, rest, wide[c]);
    FX_UNROLL
    for (int r = 0; r < Rows; ++r) {
      FX_UNROLL
      for (int p = 0; p < parts; ++p) {
        const int count = static_cast<int>(smaller(larger(rest - p * size, 0), size));
        Isa::chunks(x + r * x_stride + k0 + p * size, count, row);
        FX_UNROLL
        for (int c = 0; c < Columns; ++c) sums[r][c] = Isa::dot(wide[c][p], row[0], sums[r][c]);
      }
    }
  }
  FX_UNROLL
  for (int r = 0; r < Rows; ++r) {
    FX_UNROLL
    for (int c = 0; c < Columns; ++c) {
      typename Isa::F32& sum = to.at[r * to.row + c * to.column];
      sum = add ? sum + sums[r][c] : sums[r][c];
    }
  }
}

// The most k of one running sum. For float the error of long sums must not show: see deepest_panel.
template <class Isa, class X>
constexpr int64_t longest_dot = sizeof(X) == sizeof(float) ? 192 * Isa::lanes : INT64_MAX / 2;

// `Columns` rows of W with all m rows of x, while they are in the cache. To sums of before, `add` adds.
template <class Isa, int Columns, int Rows, class X, class W>
FX_INLINE void dot_all_rows(DotSums<typename Isa::F32> to, const X* x, int64_t x_stride, const W* w, int64_t w_stride,
                            int64_t m, int64_t k, int64_t ahead, bool add = false) {
  int64_t r = 0;
  for (; r + Rows <= m; r += Rows, to.at += Rows * to.row) {
    int64_t k0 = 0;
    do {
      const int64_t count = smaller(k - k0, longest_dot<Isa, X>);
      dot_tile<Isa, Rows, Columns>(to, add || k0 > 0, x + r * x_stride + k0, x_stride, w + k0, w_stride, count, ahead);
      k0 += count;
    } while (k0 < k);
  }
  if constexpr (Rows > 1)
    dot_all_rows<Isa, Columns, Rows - 1>(to, x + r * x_stride, x_stride, w, w_stride, m - r, k, ahead, add);
}

// Columns [0, n) of y: `lanes` of them at a time go to `sink`, which is called as in sink.inl.h.
// m is at most max_dot_rows; W is contiguous in k.
template <class Isa, class X, class W, class Sink>
static void dot_columns(const X* x, int64_t x_stride, const W* w, int64_t w_stride, int64_t m, int64_t n, int64_t k,
                        const Sink& sink) {
  using F32 = typename Isa::F32;
  constexpr int lanes = Isa::lanes, group = Isa::dot_columns, rows = dot_rows<Isa, W>;
  constexpr int64_t ahead_rows = 8, ahead_in_stream = (3 << 10) / sizeof(W);
  F32 sums[max_dot_rows][lanes];
  int64_t n0 = 0;
  // One or two rows of x leave registers for more of W. Memory is read fastest as streams far from each other.
  constexpr int streams = Isa::dot_rows > 4 ? 8 : group;
  if (m <= 2) {
    const int64_t part = n / (streams * lanes) * lanes;
    for (; n0 < part; n0 += lanes) {
      for (int64_t c = 0; c < lanes; ++c)
        dot_all_rows<Isa, streams, 2>(DotSums<F32>{&sums[0][c], lanes, m * lanes}, x, x_stride, w + (n0 + c) * w_stride,
                                      part * w_stride, m, k, ahead_in_stream);
      for (int64_t s = 0; s < streams; ++s)
        for (int64_t r = 0; r < m; ++r) sink(r, s * part + n0, Isa::sum_each(sums[s * m + r]), lanes);
    }
    n0 = streams * part;
  }
  for (; n0 < n; n0 += lanes) {
    const int columns = static_cast<int>(smaller(n - n0, lanes));
    const W* from = w + n0 * w_stride;
    int c = 0;
    for (; c + group <= columns; c += group)
      dot_all_rows<Isa, group, rows>(DotSums<F32>{&sums[0][c], lanes, 1}, x, x_stride, from + c * w_stride, w_stride, m,
                                     k, ahead_rows * w_stride);
    for (; c < lanes; ++c) {
      if (c < columns) {
        dot_all_rows<Isa, 1, 1>(DotSums<F32>{&sums[0][c], lanes, 1}, x, x_stride, from + c * w_stride, w_stride, m, k,
                                ahead_rows * w_stride);
      } else {
        for (int64_t r = 0; r < m; ++r) sums[r][c] = Isa::zero();
      }
    }
    for (int64_t r = 0; r < m; ++r) sink(r, n0, Isa::sum_each(sums[r]), columns);
  }
}

}  // namespace fx
