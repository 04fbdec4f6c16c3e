// Blocks of a [.., tokens, width] input as dense matrices: widened or narrowed, through ReLU, in either order.
#pragma once

#include "../engine/base.h"
#include "relu_linear_attention.h"

namespace fx {

// Some tokens of one head.
struct TokenBlock {
  const void* data;
  int64_t token_stride, width_stride;
  Dtype dtype;
  bool relu;
};

FX_INLINE TokenBlock token_block(const TokenTensor& t, int64_t batch, int64_t head, int64_t token, bool relu) {
  const int64_t at = batch * t.strides[0] + head * t.strides[1] + token * t.strides[2];
  const int64_t item = t.dtype == Dtype::bfloat16 ? 2 : 4;
  return {static_cast<const char*>(t.data) + at * item, t.strides[2], t.strides[3], t.dtype, relu};
}

// max(x, 0), and NaN stays: the hardware's max gives its second operand where either is NaN.
template <class Isa>
FX_INLINE typename Isa::F32 relu_if(bool on, typename Isa::F32 x) {
  return on ? Isa::max(Isa::zero(), x) : x;
}

// to[i][j] = source[i · outer + j · inner] for i < m, j < n; rows of `to` lie `stride` apart, and are
// written up to a multiple of the vector, with zeros.
template <class Isa, class T, class S>
static void copy_rows(T* to, int64_t stride, const S* source, int64_t outer, int64_t m, int64_t n, bool relu) {
  constexpr int lanes = Isa::lanes;
  for (int64_t i = 0; i < m; ++i, to += stride, source += outer) {
    int64_t j = 0;
    for (; j + lanes <= n; j += lanes) Isa::store(to + j, relu_if<Isa>(relu, Isa::load(source + j)));
    if (j < n) Isa::store(to + j, relu_if<Isa>(relu, Isa::load(source + j, static_cast<int>(n - j))));
  }
}

// The same where i is contiguous in the source: squares of vectors are transposed in registers.
template <class Isa, class T, class S>
static void copy_transposed(T* to, int64_t stride, const S* source, int64_t inner, int64_t m, int64_t n, bool relu) {
  constexpr int lanes = Isa::lanes;
  typename Isa::F32 square[lanes];
  if constexpr (sizeof(S) == sizeof(bf16)) {  // as pairs: half the transposing
    using Bits = typename Isa::U32;
    for (; m >= 2 * lanes && n % lanes == 0; m -= 2 * lanes, source += 2 * lanes, to += 2 * lanes * stride) {
      for (int64_t j = 0; j < n; j += lanes) {
        FX_UNROLL
        for (int c = 0; c < lanes; ++c) square[c] = Isa::load(reinterpret_cast<const float*>(source + (j + c) * inner));
        Isa::transpose(square);
        FX_UNROLL
        for (int r = 0; r < lanes; ++r) {
          const Bits pair = (Bits)square[r];
          Isa::store(to + 2 * r * stride + j, relu_if<Isa>(relu, (typename Isa::F32)(pair << 16)));
          Isa::store(to + (2 * r + 1) * stride + j, relu_if<Isa>(relu, (typename Isa::F32)(pair & 0xffff0000)));
        }
      }
    }
  }
  for (int64_t i = 0; i < m; i += lanes) {
    const int rows = static_cast<int>(smaller(lanes, m - i));
    for (int64_t j = 0; j < n; j += lanes) {
      const int columns = static_cast<int>(smaller(lanes, n - j));
      const S* from = source + i + j * inner;
      if (rows == lanes && columns == lanes) {
        FX_UNROLL
        for (int c = 0; c < lanes; ++c) square[c] = relu_if<Isa>(relu, Isa::load(from + c * inner));
        Isa::transpose(square);
        FX_UNROLL
        for (int r = 0; r < lanes; ++r) Isa::store(to + (i + r) * stride + j, square[r]);
      } else {
        for (int c = 0; c < lanes; ++c)
          square[c] = c < columns ? relu_if<Isa>(relu, Isa::load(from + c * inner, rows)) : Isa::zero();
        Isa::transpose(square);
        for (int r = 0; r < rows; ++r) Isa::store(to + (i + r) * stride + j, square[r]);
      }
    }
  }
}

template <class Isa, class T, class S>
static void copy_gathered(T* to, int64_t stride, const S* source, int64_t outer, int64_t inner, int64_t m, int64_t n,
                          bool relu) {
  constexpr int lanes = Isa::lanes;
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; j += lanes) {
      float few[lanes] = {};
      for (int64_t c = 0; c < smaller(lanes, n - j); ++c) few[c] = to_float(source[i * outer + (j + c) * inner]);
      Isa::store(to + i * stride + j, relu_if<Isa>(relu, Isa::load(few)));
    }
}

template <class Isa, class T, class S>
FX_INLINE void copy_block(T* to, int64_t stride, const S* source, int64_t outer, int64_t inner, int64_t m, int64_t n,
                          bool relu) {
  if (inner == 1)
    copy_rows<Isa>(to, stride, source, outer, m, n, relu);
  else if (outer == 1)
    copy_transposed<Isa>(to, stride, source, inner, m, n, relu);
  else
    copy_gathered<Isa>(to, stride, source, outer, inner, m, n, relu);
}

// to[token][width]; `stride` is at least the width rounded up to a vector.
template <class Isa, class T>
static void rows_of_tokens(T* to, int64_t stride, const TokenBlock& from, int64_t tokens, int64_t width) {
  if (from.dtype == Dtype::bfloat16)
    copy_block<Isa>(to, stride, static_cast<const bf16*>(from.data), from.token_stride, from.width_stride, tokens,
                    width, from.relu);
  else
    copy_block<Isa>(to, stride, static_cast<const float*>(from.data), from.token_stride, from.width_stride, tokens,
                    width, from.relu);
}

// to[width][token]; `stride` is at least the number of tokens rounded up to a vector.
template <class Isa, class T>
static void columns_of_tokens(T* to, int64_t stride, const TokenBlock& from, int64_t tokens, int64_t width) {
  if (from.dtype == Dtype::bfloat16)
    copy_block<Isa>(to, stride, static_cast<const bf16*>(from.data), from.width_stride, from.token_stride, width,
                    tokens, from.relu);
  else
    copy_block<Isa>(to, stride, static_cast<const float*>(from.data), from.width_stride, from.token_stride, width,
                    tokens, from.relu);
}

// Turns the pairs (2i, 2i + 1) of rows, in place: `turns` holds their (cos, sin). Both are padded to a vector.
template <class Isa, class T>
static void turn_rows(T* rows, int64_t stride, const float* turns, int64_t turns_stride, int64_t tokens,
                      int64_t width) {
  for (int64_t i = 0; i < tokens; ++i, rows += stride, turns += turns_stride)
    for (int64_t d = 0; d < width; d += Isa::lanes)
      Isa::store(rows + d, Isa::turn_pairs(Isa::load(rows + d), Isa::load(turns + d)));
}

}  // namespace fx
