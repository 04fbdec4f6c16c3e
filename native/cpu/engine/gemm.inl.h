// The GEMM engine: C[m, n] (+)= A[m, k] · B[k, n], fp32 sums, B packed.
//
//   const size_t bytes = gemm::packed_bytes<Isa, T>(k, n);            // T is float or bf16
//   void* b = scratch(Scratch::panel, bytes);
//   gemm::pack<Isa, T>(b, source, stride_n, stride_k, k, n);          // B[k][n] = source[n·stride_n + k·stride_k]
//   gemm::multiply<Isa, T>(c, ldc, a, lda, b, m, n, k, accumulate);
//
// * B may be packed from T, or (T = bf16) from e4m3 or e5m2: pack<Isa, T, Source>. Any strides; contiguous
//   k (stride_k == 1) and contiguous columns (stride_n == 1) are fast. Source reads stay within k x n.
// * A: row r at a + r·lda, contiguous in k, any alignment; nothing is read beyond its k elements.
//   A finite row is not touched by NaN or inf in another: padding is zeros times nothing.
// * C: row r at c + r·ldc; exactly n columns are written (and, with `accumulate`, read first).
// * m, n or k may be 0; k == 0 gives zeros.
//
// Packed layout: panels of up to Isa::panel columns (64 with AVX-512), one after another, each as wide as
// its columns rounded up to 16 (112 columns are 64 + 48). A panel is [depth][width] of Isa::Panel<T>: floats,
// or with BF16 dot products pairs of bf16 (k, k + 1), the last one zero-padded.
//
// Blocking is the caller's: pack what stays in L2 (256 KiB is good), and use it for all rows.
// For another end of the sums than an fp32 C, multiply_panel and multiply_panels take a sink: see sink.inl.h.
#pragma once

#include "base.h"
#include "pack.inl.h"
#include "tile.inl.h"

namespace fx::gemm {

template <class Isa, class T>
FX_INLINE size_t packed_bytes(int64_t k, int64_t n) {
  return sizeof(typename Isa::template Panel<T>) *
         static_cast<size_t>(panel_depth<Isa, T>(k) * round_up(n, column_unit));
}

template <class Isa, class T, class Source = T>
static void pack(void* packed, const Source* source, int64_t stride_n, int64_t stride_k, int64_t k, int64_t n) {
  auto* panel = static_cast<typename Isa::template Panel<T>*>(packed);
  for (int64_t n0 = 0; n0 < n; n0 += Isa::panel) {
    const int64_t width = panel_width<Isa>(n, n0), columns = smaller(n - n0, width);
    pack_panel<Isa>(panel, width, source + n0 * stride_n, stride_n, stride_k, k, columns);
    panel += panel_depth<Isa, T>(k) * width;
  }
}

// All of A times one panel of `columns` columns; each tile of sums goes to `sink`. Rows of A that are wanted next,
// `ahead` of these, are fetched meanwhile (0: none).
template <class Isa, class T, class Sink>
static void multiply_panel(const T* a, int64_t lda, const typename Isa::template Panel<T>* panel, int64_t m,
                           int64_t columns, int64_t k, const Sink& sink, int64_t ahead = 0) {
  if constexpr (Isa::template tiles<T>)
    return Isa::multiply_panel(a, lda, panel, panel_width<Isa>(columns, 0), m, columns, k, sink);
  switch (divide_up(columns, column_unit)) {
    case 1:
      return multiply_columns<Isa, 16>(a, lda, panel, m, columns, k, sink, ahead);
    case 2:
      return multiply_columns<Isa, 32>(a, lda, panel, m, columns, k, sink, ahead);
    case 3:
      return multiply_columns<Isa, 48>(a, lda, panel, m, columns, k, sink, ahead);
    default:
      return multiply_columns<Isa, 64>(a, lda, panel, m, columns, k, sink, ahead);
  }
}

// Rows of A that meet a panel at once.
template <class Isa, class T>
constexpr int64_t row_unit = Isa::template tiles<T> ? 32 : Isa::tile_rows;

template <class Isa, class T>
static void multiply(float* c, int64_t ldc, const T* a, int64_t lda, const void* packed, int64_t m, int64_t n,
                     int64_t k, bool accumulate) {
  auto* panel = static_cast<const typename Isa::template Panel<T>*>(packed);
  for (int64_t n0 = 0; n0 < n; n0 += Isa::panel) {
    const int64_t width = panel_width<Isa>(n, n0), columns = smaller(n - n0, width);
    if (accumulate)
      multiply_panel<Isa>(a, lda, panel, m, columns, k, AddTo<Isa>{c + n0, ldc});
    else
      multiply_panel<Isa>(a, lda, panel, m, columns, k, StoreTo<Isa>{c + n0, ldc});
    panel += panel_depth<Isa, T>(k) * width;
  }
}

// Do panels for rows of this type hold floats, though the rows do not?
template <class Isa, class T>
constexpr bool widens_rows = sizeof(T) < sizeof(float) && Isa::template k_step<T> == 1;

// A few rows of A as the tile reads them best. Where panels hold floats, narrower rows become floats once for
// all panels, not once for each.
template <class Isa, class T>
FX_INLINE const T* rows_for_tile(const T* a, int64_t& /*lda*/, int64_t /*rows*/, int64_t /*k*/) {
  return a;
}
template <class Isa, class T>
  requires(widens_rows<Isa, T>)
FX_INLINE const float* rows_for_tile(const T* a, int64_t& lda, int64_t rows, int64_t k) {
  constexpr int lanes = Isa::lanes;
  auto* wide = static_cast<float*>(scratch(Scratch::activations, sizeof(float) * static_cast<size_t>(rows * k)));
  for (int64_t r = 0; r < rows; ++r) {
    int64_t i = 0;
    for (; i + lanes <= k; i += lanes) Isa::store(wide + r * k + i, Isa::load(a + r * lda + i));
    for (; i < k; ++i) wide[r * k + i] = to_float(a[r * lda + i]);
  }
  lda = k;
  return wide;
}

// All of A times several panels, n columns: each few rows of A meet all panels while they are in L1.
template <class Isa, class T, class Sink>
static void multiply_panels(const T* a, int64_t lda, const void* packed, int64_t m, int64_t n, int64_t k,
                            const Sink& sink) {
  for (int64_t row = 0; row < m; row += row_unit<Isa, T>) {
    const int64_t rows = smaller(m - row, row_unit<Isa, T>);
    int64_t stride = lda;
    const auto* from = rows_for_tile<Isa>(a + row * lda, stride, rows, k);
    const int64_t ahead = gemm::widens_rows<Isa, T> ? 0 : row_unit<Isa, T> * lda;
    auto* panel = static_cast<const typename Isa::template Panel<T>*>(packed);
    for (int64_t n0 = 0; n0 < n; n0 += Isa::panel) {
      const int64_t width = panel_width<Isa>(n, n0), columns = smaller(n - n0, width);
      multiply_panel<Isa>(from, stride, panel, rows, columns, k, sink.at(row, n0), n0 == 0 ? ahead : 0);
      panel += panel_depth<Isa, T>(k) * width;
    }
  }
}

}  // namespace fx::gemm
