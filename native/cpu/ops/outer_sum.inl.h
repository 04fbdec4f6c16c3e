// Σ_j a_jᵀ b_j of rows a_j and b_j: the product of a transposed matrix with another, both packed as panels over
// the same j (see engine/gemm.inl.h). Nothing is transposed: the elements of a_j are broadcast from its panel.
#pragma once

#include "../engine/pack.inl.h"
#include "../engine/sink.inl.h"
#include "ahead.inl.h"

namespace fx {

// C[r, c] = Σ_k a[k][r] · b[k][c] for Rows columns of a panel of A, and a panel of B of Width columns. Meanwhile
// memory is asked for what is `ahead`.
template <class Isa, int Rows, int Width, class Element, class Sink>
[[gnu::noinline]] static void outer_rows(const Element* a, int64_t a_width, const Element* b, int64_t row,
                                         int64_t columns, int64_t depth, const Sink& sink, Ahead& ahead) {
  constexpr int lanes = Isa::lanes, vectors = Width / lanes;
  typename Isa::F32 sums[Rows][vectors];
  FX_UNROLL
  for (int r = 0; r < Rows; ++r) FX_UNROLL
  for (int v = 0; v < vectors; ++v) sums[r][v] = Isa::zero();
  Ahead::Lines lines = ahead.lines();
  for (int64_t k = 0; k < depth; ++k, a += a_width, b += Width) {
    lines.ask();
    FX_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const auto x = Isa::broadcast(a + r);
      FX_UNROLL
      for (int v = 0; v < vectors; ++v) sums[r][v] = Isa::dot(x, Isa::panel_load(b + v * lanes), sums[r][v]);
    }
  }
  ahead.leave(lines);
  FX_UNROLL
  for (int v = 0; v < vectors; ++v) {
    const int count = static_cast<int>(smaller(columns - v * lanes, lanes));
    if (count <= 0) break;
    FX_UNROLL
    for (int r = 0; r < Rows; ++r) sink(row + r, v * lanes, sums[r][v], count);
  }
}

template <class Isa, int Rows, int Width, class Element, class Sink>
FX_INLINE void outer_rows_of(const Element* a, int64_t a_width, const Element* b, int64_t row, int64_t rows,
                             int64_t columns, int64_t depth, const Sink& sink, Ahead& ahead) {
  if constexpr (Width <= Isa::panel) {
    for (; rows >= Rows; rows -= Rows, row += Rows, a += Rows)
      outer_rows<Isa, Rows, Width>(a, a_width, b, row, columns, depth, sink, ahead);
    if constexpr (Rows > 1) outer_rows_of<Isa, Rows - 1, Width>(a, a_width, b, row, rows, columns, depth, sink, ahead);
  }
}

// C[row.., ..] for `rows` columns of A, whose rows lie a_width apart, and one panel of B with `columns` columns.
template <class Isa, class Element, class Sink>
static void outer_panel(const Element* a, int64_t a_width, const Element* b, int64_t row, int64_t rows, int64_t columns,
                        int64_t depth, const Sink& sink, Ahead& ahead) {
  switch (divide_up(columns, column_unit)) {
    case 1:
      return outer_rows_of<Isa, Isa::tile_rows, 16>(a, a_width, b, row, rows, columns, depth, sink, ahead);
    case 2:
      return outer_rows_of<Isa, Isa::tile_rows, 32>(a, a_width, b, row, rows, columns, depth, sink, ahead);
    case 3:
      return outer_rows_of<Isa, Isa::tile_rows, 48>(a, a_width, b, row, rows, columns, depth, sink, ahead);
    default:
      return outer_rows_of<Isa, Isa::tile_rows, 64>(a, a_width, b, row, rows, columns, depth, sink, ahead);
  }
}

// c[m, n] (+)= AᵀB of A [k, m] and B [k, n], packed: row r at c + r·ldc.
template <class Isa, class T>
static void outer_sum(float* c, int64_t ldc, const void* a_packed, const void* b_packed, int64_t m, int64_t n,
                      int64_t k, bool accumulate, Ahead& ahead) {
  using Element = typename Isa::template Panel<T>;
  const int64_t depth = panel_depth<Isa, T>(k);
  auto* b = static_cast<const Element*>(b_packed);
  for (int64_t n0 = 0; n0 < n; n0 += Isa::panel) {
    auto* a = static_cast<const Element*>(a_packed);
    for (int64_t m0 = 0; m0 < m; m0 += Isa::panel) {
      const int64_t a_width = panel_width<Isa>(m, m0), rows = smaller(m - m0, a_width);
      const int64_t columns = smaller(n - n0, Isa::panel);
      if (accumulate)
        outer_panel<Isa>(a, a_width, b, m0, rows, columns, depth, AddTo<Isa>{c + n0, ldc}, ahead);
      else
        outer_panel<Isa>(a, a_width, b, m0, rows, columns, depth, StoreTo<Isa>{c + n0, ldc}, ahead);
      a += depth * a_width;
    }
    b += depth * panel_width<Isa>(n, n0);
  }
}

}  // namespace fx
