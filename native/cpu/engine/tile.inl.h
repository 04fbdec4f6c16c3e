// The register-blocked tile of the GEMM engine: a few rows of A times a few vectors of a panel.
#pragma once

#include "base.h"
#include "sink.inl.h"

namespace fx {

// sums[r][v] = Σ_k a[r, k] · panel[k, v]. The sums stay in registers: Rows x Vectors of them, one vector
// of the panel for each column, one broadcast of A. Rows of the panel lie Width apart. Meanwhile what lies `ahead` of
// these rows is fetched into L2 (not where it is 0).
template <class Isa, int Rows, int Vectors, int Width = Vectors * Isa::lanes, class T>
FX_INLINE void tile(typename Isa::F32 (&sums)[Rows][Vectors], const T* a, int64_t lda,
                    const typename Isa::template Panel<T>* panel, int64_t k, int64_t ahead) {
  constexpr int step = Isa::template k_step<T>, line = 64 / sizeof(T);
  FX_UNROLL
  for (int r = 0; r < Rows; ++r) FX_UNROLL
  for (int v = 0; v < Vectors; ++v) sums[r][v] = Isa::zero();
  int64_t k0 = 0;
  while (k0 + step <= k) {
    if (ahead != 0) {
      FX_UNROLL
      for (int r = 0; r < Rows; ++r) __builtin_prefetch(a + r * lda + k0 + ahead, 0, 2);
    }
    for (const int64_t end = smaller(k0 + line, k); k0 + step <= end; k0 += step, panel += Width) {
      typename Isa::template Chunk<T> b[Vectors];
      FX_UNROLL
      for (int v = 0; v < Vectors; ++v) b[v] = Isa::panel_load(panel + v * Isa::lanes);
      FX_UNROLL
      for (int r = 0; r < Rows; ++r) {
        const auto x = Isa::broadcast(a + r * lda + k0);
        FX_UNROLL
        for (int v = 0; v < Vectors; ++v) sums[r][v] = Isa::dot(x, b[v], sums[r][v]);
      }
    }
  }
  if (step > 1 && k0 < k) {  // the odd element: reading a pair of it would read beyond the row
    FX_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const auto x = Isa::broadcast_last(a + r * lda + k0);
      FX_UNROLL
      for (int v = 0; v < Vectors; ++v) sums[r][v] = Isa::dot(x, Isa::panel_load(panel + v * Isa::lanes), sums[r][v]);
    }
  }
}

// A panel of which half a vector is used, times as many rows as fill the registers' latency.
template <class Isa, int Rows, class T, class Sink>
[[gnu::noinline]] static void multiply_half(const T* a, int64_t lda, const typename Isa::template Panel<T>* panel,
                                            int64_t row, int64_t columns, int64_t k, const Sink& sink) {
  using Half = typename Isa::Half;
  typename Half::F32 halves[Rows][1];
  tile<Half, Rows, 1, Isa::lanes>(halves, a + row * lda, lda, panel, k, 0);
  FX_UNROLL
  for (int r = 0; r < Rows; ++r) {
    typename Isa::F32 sums[1] = {Isa::widen_half(halves[r][0])};
    if constexpr (requires { sink.whole_row(row, sums, columns); })
      sink.whole_row(row + r, sums, columns);
    else
      sink(row + r, 0, sums[0], static_cast<int>(columns));
  }
}

template <class Isa, int Rows, int Width, class T, class Sink>
[[gnu::noinline]] static void multiply_rows(const T* a, int64_t lda, const typename Isa::template Panel<T>* panel,
                                            int64_t row, int64_t columns, int64_t k, const Sink& sink, int64_t ahead) {
  constexpr int lanes = Isa::lanes, vectors = Width / lanes;
  typename Isa::F32 sums[Rows][vectors];
  tile<Isa>(sums, a + row * lda, lda, panel, k, ahead);
  if constexpr (requires { sink.whole_row(row, sums[0], columns); }) {
    FX_UNROLL
    for (int r = 0; r < Rows; ++r) sink.whole_row(row + r, sums[r], columns);
  } else {
    FX_UNROLL
    for (int v = 0; v < vectors; ++v) {
      const int count = static_cast<int>(smaller(columns - v * lanes, lanes));
      if (count <= 0) break;
      FX_UNROLL
      for (int r = 0; r < Rows; ++r) sink(row + r, v * lanes, sums[r][v], count);
    }
  }
}

// The last, fewer rows: the tile of exactly that many.
template <class Isa, int Rows, int Width, class T, class Sink>
FX_INLINE void multiply_last_rows(const T* a, int64_t lda, const typename Isa::template Panel<T>* panel, int64_t row,
                                  int64_t rows, int64_t columns, int64_t k, const Sink& sink, int64_t ahead) {
  if constexpr (Rows > 0) {
    if (rows == Rows)
      multiply_rows<Isa, Rows, Width>(a, lda, panel, row, columns, k, sink, ahead);
    else
      multiply_last_rows<Isa, Rows - 1, Width>(a, lda, panel, row, rows, columns, k, sink, ahead);
  }
}

template <class Isa, int Width, class T, class Sink>
static void multiply_columns(const T* a, int64_t lda, const typename Isa::template Panel<T>* panel, int64_t m,
                             int64_t columns, int64_t k, const Sink& sink, int64_t ahead) {
  if constexpr (Width <= Isa::panel) {
    // A narrow panel leaves registers for more rows. Not beyond eight: rows a power of two apart meet in one of
    // L1's sets, of eight ways.
    constexpr int rows = Width == Isa::panel ? Isa::tile_rows : smaller(Isa::tile_rows * Isa::panel / Width, 8);
    int64_t row = 0;
    if constexpr (Width == Isa::lanes && requires { typename Isa::Half; }) {
      constexpr int many = Isa::Half::tile_rows;
      if (columns <= Isa::Half::lanes)
        for (; row + many <= m; row += many) multiply_half<Isa, many>(a, lda, panel, row, columns, k, sink);
    }
    for (; row + rows <= m; row += rows) multiply_rows<Isa, rows, Width>(a, lda, panel, row, columns, k, sink, ahead);
    multiply_last_rows<Isa, rows - 1, Width>(a, lda, panel, row, m - row, columns, k, sink, ahead);
  }
}

}  // namespace fx
