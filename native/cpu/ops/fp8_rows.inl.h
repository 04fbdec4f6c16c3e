// Rows of FP8 as the left operand of a product with a packed panel. They are decoded a block of k ahead of their
// use, beside the products, which leave the units that look codes up idle.
#pragma once

#include "../engine/gemm.inl.h"

namespace fx {

// Where decoded rows go: block b of row r at values + r · stride + (b & mask) · codes_at_once.
struct DecodedRows {
  bf16* values;
  int64_t stride, mask;  // mask: all ones, or 1 where two blocks of a row are enough
};

template <class Isa, class W>
constexpr int64_t codes_at_once = Isa::template chunk_size<W> * Isa::template chunks_at_once<W>;

// For k of some rows; all of it where it is kept for further panels.
template <class Isa, class W>
FX_INLINE DecodedRows decoded_rows(int64_t rows, int64_t k, bool kept) {
  constexpr int64_t at_once = codes_at_once<Isa, W>, line = 64 / sizeof(bf16);
  const int64_t stride = (kept ? round_up(k, at_once) : 2 * at_once) + line;  // odd in lines: spread over L1's sets
  const size_t bytes = sizeof(bf16) * static_cast<size_t>(rows * stride);
  return {static_cast<bf16*>(scratch(Scratch::activations, bytes)), stride, kept ? -1 : 1};
}

// Block b of `Rows` rows of k codes. Codes that are wanted later lie `ahead` of these.
template <class Isa, int Rows, class W>
FX_INLINE void decode_block(const DecodedRows& to, const W* w, int64_t ldw, int64_t k, int64_t b, int64_t ahead) {
  constexpr int64_t at_once = codes_at_once<Isa, W>;
  bf16* out = to.values + (b & to.mask) * at_once;
  const W* from = w + b * at_once;
  if ((b + 1) * at_once <= k) {
    FX_UNROLL
    for (int r = 0; r < Rows; ++r) {
      __builtin_prefetch(from + r * ldw + ahead, 0, 2);
      Isa::decoded(from + r * ldw, out + r * to.stride);
    }
  } else {
    const int rest = static_cast<int>(k - b * at_once);
    FX_UNROLL
    for (int r = 0; r < Rows; ++r) {
      Isa::decoded(from + r * ldw, rest, out + r * to.stride);
      out[r * to.stride + rest] = {0};  // of a pair, of which the panel has zero too
    }
  }
}

// As multiply_rows of engine/tile.inl.h.
template <class Isa, int Rows, int Width, class W, class Sink>
[[gnu::noinline]] static void multiply_codes(const W* w, int64_t ldw, const DecodedRows& decoded,
                                             const typename Isa::template Panel<bf16>* panel, int64_t row,
                                             int64_t columns, int64_t k, const Sink& sink, int64_t ahead) {
  constexpr int lanes = Isa::lanes, vectors = Width / lanes, step = Isa::template k_step<bf16>;
  constexpr int64_t at_once = codes_at_once<Isa, W>;
  typename Isa::F32 sums[Rows][vectors];
  FX_UNROLL
  for (int r = 0; r < Rows; ++r) FX_UNROLL
  for (int v = 0; v < vectors; ++v) sums[r][v] = Isa::zero();

  const DecodedRows to = decoded;
  w += row * ldw;
  if (k > 0) decode_block<Isa, Rows>(to, w, ldw, k, 0, ahead);
  for (int64_t b = 0; b * at_once < k; ++b) {
    if ((b + 1) * at_once < k) decode_block<Isa, Rows>(to, w, ldw, k, b + 1, ahead);
    const bf16* a = to.values + (b & to.mask) * at_once;
    for (const bf16* end = a + smaller(at_once, k - b * at_once); a < end; a += step, panel += Width) {
      typename Isa::template Chunk<bf16> of_panel[vectors];
      FX_UNROLL
      for (int v = 0; v < vectors; ++v) of_panel[v] = Isa::panel_load(panel + v * lanes);
      FX_UNROLL
      for (int r = 0; r < Rows; ++r) {
        const auto x = Isa::broadcast(a + r * to.stride);
        FX_UNROLL
        for (int v = 0; v < vectors; ++v) sums[r][v] = Isa::dot(x, of_panel[v], sums[r][v]);
      }
    }
  }
  FX_UNROLL
  for (int v = 0; v < vectors; ++v) {
    const int count = static_cast<int>(smaller(columns - v * lanes, lanes));
    if (count <= 0) break;
    FX_UNROLL
    for (int r = 0; r < Rows; ++r) sink(row + r, v * lanes, sums[r][v], count);
  }
}

template <class Isa, int Rows, int Width, class W, class Sink>
FX_INLINE void multiply_codes_of(const W* w, int64_t ldw, const DecodedRows& to,
                                 const typename Isa::template Panel<bf16>* panel, int64_t row, int64_t rows,
                                 int64_t columns, int64_t k, const Sink& sink) {
  if constexpr (Rows > 0) {
    for (; row + Rows <= rows; row += Rows) {
      const DecodedRows here{to.values + (to.mask < 0 ? row * to.stride : 0), to.stride, to.mask};
      multiply_codes<Isa, Rows, Width>(w, ldw, here, panel, row, columns, k, sink, Rows * ldw);
    }
    multiply_codes_of<Isa, Rows - 1, Width>(w, ldw, to, panel, row, rows, columns, k, sink);
  }
}

// All rows times one panel of `columns` columns: see gemm::multiply_panel.
template <class Isa, class W, class Sink>
static void multiply_panel_by_codes(const W* w, int64_t ldw, const DecodedRows& to,
                                    const typename Isa::template Panel<bf16>* panel, int64_t rows, int64_t columns,
                                    int64_t k, const Sink& sink) {
  switch (divide_up(columns, column_unit)) {
    case 1:
      return multiply_codes_of<Isa, 8, 16>(w, ldw, to, panel, 0, rows, columns, k, sink);
    case 2:
      return multiply_codes_of<Isa, 8, 32>(w, ldw, to, panel, 0, rows, columns, k, sink);
    case 3:
      return multiply_codes_of<Isa, 8, 48>(w, ldw, to, panel, 0, rows, columns, k, sink);
    default:
      return multiply_codes_of<Isa, 6, 64>(w, ldw, to, panel, 0, rows, columns, k, sink);
  }
}

}  // namespace fx
