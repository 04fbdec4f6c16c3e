// A panel of few columns whose vectors hold four steps of k of four columns each, where gemm.inl.h has one step of
// sixteen. Its tile is of four vectors, then, and not of one: sixteen bytes of a row of A, repeated, meet all four.
// With one vector there would be a load for every product, and such machines load one vector a cycle.
#pragma once

#include "base.h"

namespace fx {

// Columns of such a panel; vectors of it for a group of steps.
constexpr int64_t interleaved_columns = 16;
constexpr int interleaved_vectors = 4;

template <class Isa, class T>
constexpr bool interleaves = requires(const T* a) { Isa::repeat_quarter(a); };

// Steps of k in a panel: whole groups.
template <class Isa, class T>
FX_INLINE int64_t interleaved_depth(int64_t k) {
  return round_up(divide_up(k, Isa::template k_step<T>), 4);
}

// Quarter q of vector v is of column 4·q + v; zeros beyond `columns` and k. Columns of the source are contiguous
// in k.
template <class Isa, class T, class Source>
static void pack_interleaved(typename Isa::template Panel<T>* panel, const Source* source, int64_t stride, int64_t k,
                             int64_t columns) {
  constexpr int lanes = Isa::lanes, step = Isa::template k_step<T>, block = lanes * step, groups = lanes / 4;
  static_assert(lanes == 16);
  for (int64_t k0 = 0; k0 < k; k0 += block) {
    const int count = static_cast<int>(smaller(k - k0, block)),
              kept = static_cast<int>(interleaved_depth<Isa, T>(count) / 4);
    FX_UNROLL
    for (int v = 0; v < interleaved_vectors; ++v) {
      typename Isa::F32 four[4];
      FX_UNROLL
      for (int q = 0; q < 4; ++q)
        four[q] = 4 * q + v < columns ? Isa::panel_of_k(source + (4 * q + v) * stride + k0, count) : Isa::zero();
      Isa::template exchange<8>(four[0], four[2]);
      Isa::template exchange<8>(four[1], four[3]);
      Isa::template exchange<4>(four[0], four[1]);
      Isa::template exchange<4>(four[2], four[3]);
      FX_UNROLL
      for (int g = 0; g < groups; ++g)
        if (g < kept) Isa::panel_store(panel + (g * interleaved_vectors + v) * lanes, four[g]);
    }
    panel += interleaved_vectors * groups * lanes;
  }
}

// The sixteen sums of a row: those of the four steps are added, column 4·q + v from quarter q of vector v.
template <class Isa>
FX_INLINE typename Isa::F32 sum_quarters(typename Isa::F32 (&sums)[interleaved_vectors]) {
  Isa::template exchange<1>(sums[0], sums[1]);
  Isa::template exchange<1>(sums[2], sums[3]);
  typename Isa::F32 even = sums[0] + sums[1], odd = sums[2] + sums[3];
  Isa::template exchange<2>(even, odd);
  return even + odd;
}

// Adds the products of a group of steps, of which A has `count` elements, or all.
template <class Isa, bool Whole, int Rows, class T>
FX_INLINE void add_group(typename Isa::F32 (&sums)[Rows][interleaved_vectors], const T* a, int64_t lda,
                         const typename Isa::template Panel<T>* panel, [[maybe_unused]] int count) {
  typename Isa::template Chunk<T> b[interleaved_vectors], x;
  FX_UNROLL
  for (int v = 0; v < interleaved_vectors; ++v) b[v] = Isa::panel_load(panel + v * Isa::lanes);
  FX_UNROLL
  for (int r = 0; r < Rows; ++r) {
    if constexpr (Whole)
      x = Isa::repeat_quarter(a + r * lda);
    else
      x = Isa::repeat_quarter(a + r * lda, count);
    FX_UNROLL
    for (int v = 0; v < interleaved_vectors; ++v) sums[r][v] = Isa::dot(x, b[v], sums[r][v]);
  }
}

template <class Isa, int Rows, class T, class Sink>
[[gnu::noinline]] static void multiply_interleaved_rows(const T* a, int64_t lda,
                                                        const typename Isa::template Panel<T>* panel, int64_t row,
                                                        int64_t columns, int64_t k, const Sink& sink, int64_t ahead) {
  constexpr int group = 4 * Isa::template k_step<T>, line = 64 / sizeof(T);
  typename Isa::F32 sums[Rows][interleaved_vectors];
  FX_UNROLL
  for (int r = 0; r < Rows; ++r) FX_UNROLL
  for (int v = 0; v < interleaved_vectors; ++v) sums[r][v] = Isa::zero();
  a += row * lda;
  int64_t k0 = 0;
  while (k0 + group <= k) {
    if (ahead != 0) {
      FX_UNROLL
      for (int r = 0; r < Rows; ++r) __builtin_prefetch(a + r * lda + k0 + ahead, 0, 2);
    }
    const int64_t end = smaller(k0 + line, k);
    for (; k0 + group <= end; k0 += group, panel += interleaved_vectors * Isa::lanes)
      add_group<Isa, true>(sums, a + k0, lda, panel, group);
  }
  if (k0 < k) add_group<Isa, false>(sums, a + k0, lda, panel, static_cast<int>(k - k0));
  FX_UNROLL
  for (int r = 0; r < Rows; ++r) sink(row + r, 0, sum_quarters<Isa>(sums[r]), static_cast<int>(columns));
}

template <class Isa, int Rows, class T, class Sink>
FX_INLINE void multiply_last_interleaved_rows(const T* a, int64_t lda, const typename Isa::template Panel<T>* panel,
                                              int64_t row, int64_t rows, int64_t columns, int64_t k, const Sink& sink,
                                              int64_t ahead) {
  if constexpr (Rows > 0) {
    if (rows == Rows)
      multiply_interleaved_rows<Isa, Rows>(a, lda, panel, row, columns, k, sink, ahead);
    else
      multiply_last_interleaved_rows<Isa, Rows - 1>(a, lda, panel, row, rows, columns, k, sink, ahead);
  }
}

// All of A times such a panel with `columns` columns; as gemm::multiply_panel.
template <class Isa, class T, class Sink>
static void multiply_interleaved(const T* a, int64_t lda, const typename Isa::template Panel<T>* panel, int64_t m,
                                 int64_t columns, int64_t k, const Sink& sink, int64_t ahead = 0) {
  constexpr int rows = 24 / interleaved_vectors;  // sums in registers, as the widest tile has
  int64_t row = 0;
  for (; row + rows <= m; row += rows)
    multiply_interleaved_rows<Isa, rows>(a, lda, panel, row, columns, k, sink, ahead);
  multiply_last_interleaved_rows<Isa, rows - 1>(a, lda, panel, row, m - row, columns, k, sink, ahead);
}

}  // namespace fx
