// A panel of few columns whose vectors hold four steps of k of four columns each, where gemm.inl.h has one step of
// sixteen. Its tile has a vector for each four columns, then, and not one for all: sixteen bytes of a row of A,
// repeated, meet each. With one vector there would be a load for every product, and such machines load one vector a
// cycle; and columns need not be sixteen.
#pragma once

#include "base.h"

namespace fx {

// The most columns of such a panel; columns of a vector.
constexpr int64_t interleaved_columns = 16, interleaved_unit = 4;

template <class Isa, class T>
constexpr bool interleaves = requires(const T* a) { Isa::repeat_quarter(a); };

// Steps of k in a panel: whole groups.
template <class Isa, class T>
FX_INLINE int64_t interleaved_depth(int64_t k) {
  return round_up(divide_up(k, Isa::template k_step<T>), 4);
}

// Calls body.operator()<Vectors>() for the vectors that so many columns fill: two to four.
template <class Body>
FX_INLINE void with_vectors_of(int64_t columns, const Body& body) {
  if (columns <= 2 * interleaved_unit)
    body.template operator()<2>();
  else if (columns <= 3 * interleaved_unit)
    body.template operator()<3>();
  else
    body.template operator()<4>();
}

template <class Isa, int Vectors, class T, class Source>
static void pack_interleaved_vectors(typename Isa::template Panel<T>* panel, const Source* source, int64_t stride,
                                     int64_t k, int64_t columns) {
  constexpr int lanes = Isa::lanes, step = Isa::template k_step<T>, block = lanes * step, groups = lanes / 4;
  static_assert(lanes == 16);
  for (int64_t k0 = 0; k0 < k; k0 += block) {
    const int count = static_cast<int>(smaller(k - k0, block)),
              kept = static_cast<int>(interleaved_depth<Isa, T>(count) / 4);
    FX_UNROLL
    for (int v = 0; v < Vectors; ++v) {
      typename Isa::F32 four[4];
      FX_UNROLL
      for (int q = 0; q < 4; ++q) {
        const int column = Vectors * q + v;
        four[q] = column < columns ? Isa::panel_of_k(source + column * stride + k0, count) : Isa::zero();
      }
      Isa::template exchange<8>(four[0], four[2]);
      Isa::template exchange<8>(four[1], four[3]);
      Isa::template exchange<4>(four[0], four[1]);
      Isa::template exchange<4>(four[2], four[3]);
      FX_UNROLL
      for (int g = 0; g < groups; ++g)
        if (g < kept) Isa::panel_store(panel + (g * Vectors + v) * lanes, four[g]);
    }
    panel += Vectors * groups * lanes;
  }
}

// Quarter q of vector v is of column vectors · q + v; zeros beyond `columns` and k. Columns of the source are
// contiguous in k.
template <class Isa, class T, class Source>
static void pack_interleaved(typename Isa::template Panel<T>* panel, const Source* source, int64_t stride, int64_t k,
                             int64_t columns) {
  with_vectors_of(columns,
                  [&]<int Vectors>() { pack_interleaved_vectors<Isa, Vectors, T>(panel, source, stride, k, columns); });
}

// The sums of a row: those of the four steps are added; column Vectors · q + v comes from quarter q of vector v.
template <class Isa, int Vectors>
FX_INLINE typename Isa::F32 sum_quarters(const typename Isa::F32 (&of)[Vectors]) {
  typename Isa::F32 sums[4];
  FX_UNROLL
  for (int v = 0; v < 4; ++v) sums[v] = v < Vectors ? of[v] : Isa::zero();
  Isa::template exchange<1>(sums[0], sums[1]);
  Isa::template exchange<1>(sums[2], sums[3]);
  typename Isa::F32 even = sums[0] + sums[1], odd = sums[2] + sums[3];
  Isa::template exchange<2>(even, odd);
  return Isa::template first_of_quarters<Vectors>(even + odd);
}

// Adds the products of a group of steps, of which A has `count` elements, or all.
template <class Isa, bool Whole, int Rows, int Vectors, class T>
FX_INLINE void add_group(typename Isa::F32 (&sums)[Rows][Vectors], const T* a, int64_t lda,
                         const typename Isa::template Panel<T>* panel, [[maybe_unused]] int count) {
  typename Isa::template Chunk<T> b[Vectors], x;
  FX_UNROLL
  for (int v = 0; v < Vectors; ++v) b[v] = Isa::panel_load(panel + v * Isa::lanes);
  FX_UNROLL
  for (int r = 0; r < Rows; ++r) {
    if constexpr (Whole)
      x = Isa::repeat_quarter(a + r * lda);
    else
      x = Isa::repeat_quarter(a + r * lda, count);
    FX_UNROLL
    for (int v = 0; v < Vectors; ++v) sums[r][v] = Isa::dot(x, b[v], sums[r][v]);
  }
}

// One column more, which lies in memory and is multiplied as dot products beside the panel, while a row of A is in L1
// for it. Sums of row r, their lanes apart, are stored at `sums` + r, or added there.
template <class F32, class T>
struct ColumnBeside {
  const T* column = nullptr;  // or none
  F32* sums = nullptr;
  bool add = false;
};

template <class Isa, int Rows, int Vectors, bool Beside, class T, class Sink>
[[gnu::noinline]] static void multiply_interleaved_rows(const T* a, int64_t lda,
                                                        const typename Isa::template Panel<T>* panel, int64_t row,
                                                        int64_t columns, int64_t k, const Sink& sink, int64_t ahead,
                                                        const ColumnBeside<typename Isa::F32, T>& beside) {
  constexpr int group = 4 * Isa::template k_step<T>, line = 64 / sizeof(T);
  using F32 = typename Isa::F32;
  F32 sums[Rows][Vectors], dots[Rows];
  FX_UNROLL
  for (int r = 0; r < Rows; ++r) {
    dots[r] = Isa::zero();
    FX_UNROLL
    for (int v = 0; v < Vectors; ++v) sums[r][v] = Isa::zero();
  }
  const auto add_beside = [&](int64_t at, auto... count) __attribute__((always_inline)) {
    typename Isa::template Chunk<T> of_row[1], of_column[1];
    Isa::chunks(beside.column + at, count..., of_column);
    FX_UNROLL
    for (int r = 0; r < Rows; ++r) {
      Isa::chunks(a + r * lda + at, count..., of_row);
      dots[r] = Isa::dot(of_row[0], of_column[0], dots[r]);
    }
  };
  a += row * lda;
  int64_t k0 = 0;
  for (; k0 + line <= k; k0 += line) {
    if (ahead != 0) {
      FX_UNROLL
      for (int r = 0; r < Rows; ++r) __builtin_prefetch(a + r * lda + k0 + ahead, 0, 2);
    }
    for (int i = 0; i < line; i += group, panel += Vectors * Isa::lanes)
      add_group<Isa, true>(sums, a + k0 + i, lda, panel, group);
    if constexpr (Beside) add_beside(k0);
  }
  if constexpr (Beside) {
    if (k0 < k) add_beside(k0, static_cast<int>(k - k0));
  }
  for (; k0 + group <= k; k0 += group, panel += Vectors * Isa::lanes)
    add_group<Isa, true>(sums, a + k0, lda, panel, group);
  if (k0 < k) add_group<Isa, false>(sums, a + k0, lda, panel, static_cast<int>(k - k0));
  FX_UNROLL
  for (int r = 0; r < Rows; ++r) {
    sink(row + r, 0, sum_quarters<Isa>(sums[r]), static_cast<int>(columns));
    if constexpr (Beside) {
      F32& to = beside.sums[row + r];
      to = beside.add ? to + dots[r] : dots[r];
    }
  }
}

template <class Isa, int Rows, int Vectors, bool Beside, class T, class Sink>
FX_INLINE void multiply_interleaved_by(const T* a, int64_t lda, const typename Isa::template Panel<T>* panel,
                                       int64_t row, int64_t m, int64_t columns, int64_t k, const Sink& sink,
                                       int64_t ahead, const ColumnBeside<typename Isa::F32, T>& beside) {
  if constexpr (Rows > 0) {
    for (; row + Rows <= m; row += Rows)
      multiply_interleaved_rows<Isa, Rows, Vectors, Beside>(a, lda, panel, row, columns, k, sink, ahead, beside);
    multiply_interleaved_by<Isa, Rows - 1, Vectors, Beside>(a, lda, panel, row, m, columns, k, sink, ahead, beside);
  }
}

// All of A times such a panel with `columns` columns; as gemm::multiply_panel.
template <class Isa, class T, class Sink>
static void multiply_interleaved(const T* a, int64_t lda, const typename Isa::template Panel<T>* panel, int64_t m,
                                 int64_t columns, int64_t k, const Sink& sink, int64_t ahead = 0,
                                 const ColumnBeside<typename Isa::F32, T>& beside = {}) {
  // Sums in registers, as the widest tile has; and see multiply_columns.
  constexpr int sums = 24, most_rows = 8;
  with_vectors_of(columns, [&]<int Vectors>() {
    if (beside.column != nullptr)
      multiply_interleaved_by<Isa, smaller(sums / (Vectors + 1), most_rows), Vectors, true>(
          a, lda, panel, 0, m, columns, k, sink, ahead, beside);
    else
      multiply_interleaved_by<Isa, smaller(sums / Vectors, most_rows), Vectors, false>(a, lda, panel, 0, m, columns, k,
                                                                                       sink, ahead, beside);
  });
}

}  // namespace fx
