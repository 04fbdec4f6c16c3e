// FP8 weights decoded ahead of their use, into a few KiB that stay in L1: where the scale varies along k (it
// must be in the product then), and where the product wants floats.
#pragma once

#include "../engine/base.h"
#include "fp8_linear.h"

namespace fx {

// Scales along one line of the weight: element i has values[i / block · stride].
struct ScaleLine {
  const float* values;  // null is 1
  int64_t stride, block;
};

FX_INLINE ScaleLine scales_along_k(const WeightScale& s, int64_t n) {
  return {s.values == nullptr ? nullptr : s.values + n / s.block_n * s.stride_n, s.stride_k, s.block_k};
}
FX_INLINE ScaleLine scales_along_n(const WeightScale& s, int64_t k) {
  return {s.values == nullptr ? nullptr : s.values + k / s.block_k * s.stride_k, s.stride_n, s.block_n};
}

// to[i] = decode(from[i]) · factor
template <class Isa, class D, class W>
FX_INLINE void decode_by_one_factor(D* to, const W* from, int64_t count, float factor) {
  constexpr int parts = Isa::decoded_at_once, lanes = Isa::lanes;
  const typename Isa::F32 by = Isa::splat(factor);
  typename Isa::F32 values[parts];
  int64_t i = 0;
  for (; i + parts * lanes <= count; i += parts * lanes) {
    Isa::decoded(from + i, values);
    FX_UNROLL
    for (int p = 0; p < parts; ++p) Isa::store(to + i + p * lanes, values[p] * by);
  }
  if (i == count) return;
  Isa::decoded(from + i, static_cast<int>(count - i), values);
  FX_UNROLL
  for (int p = 0; p < parts; ++p) {
    const int rest = static_cast<int>(smaller(larger(count - i - p * lanes, 0), lanes));
    if (rest > 0) Isa::store(to + i + p * lanes, values[p] * by, rest);
  }
}

// The same with a factor for each element.
template <class Isa, class D, class W>
FX_INLINE void decode_by_factors(D* to, const W* from, int64_t count, const float* factors) {
  constexpr int parts = Isa::decoded_at_once, lanes = Isa::lanes;
  typename Isa::F32 values[parts];
  int64_t i = 0;
  for (; i + parts * lanes <= count; i += parts * lanes) {
    Isa::decoded(from + i, values);
    FX_UNROLL
    for (int p = 0; p < parts; ++p) Isa::store(to + i + p * lanes, values[p] * Isa::load(factors + i + p * lanes));
  }
  for (; i < count; i += lanes) {
    const int rest = static_cast<int>(smaller(count - i, lanes));
    Isa::store(to + i, Isa::load(from + i, rest) * Isa::load(factors + i, rest), rest);
  }
}

// to[i] = decode(from[i]) in bf16, where the ISA decodes to that.
template <class Isa, class W>
FX_INLINE void decode_to_bf16(bf16* to, const W* from, int64_t count) {
  constexpr int at_once = Isa::template chunk_size<W> * Isa::template chunks_at_once<W>;
  int64_t i = 0;
  for (; i + at_once <= count; i += at_once) Isa::decoded(from + i, to + i);
  if (i < count) Isa::decoded(from + i, static_cast<int>(count - i), to + i);
}

// `count` neighbouring codes, of which the first is element `first` of its line.
template <class Isa, class D, class W>
[[gnu::noinline]] static void decode_line(D* to, const W* from, int64_t count, const ScaleLine& scale, int64_t first) {
  if constexpr (sizeof(D) < sizeof(float)) {
    if (scale.values == nullptr) return decode_to_bf16<Isa>(to, from, count);
  }
  if (scale.values == nullptr || scale.stride == 0)
    return decode_by_one_factor<Isa>(to, from, count, scale.values == nullptr ? 1.0f : *scale.values);
  if (scale.block == 1 && scale.stride == 1) return decode_by_factors<Isa>(to, from, count, scale.values + first);
  for (int64_t done = 0; done < count;) {
    const int64_t element = first + done, block = element / scale.block;
    const int64_t run = smaller(count - done, (block + 1) * scale.block - element);
    decode_by_one_factor<Isa>(to + done, from + done, run, scale.values[block * scale.stride]);
    done += run;
  }
}

// The part [n, n + columns) x [k, k + depth) of a weight [N, K].
template <class W>
struct WeightPart {
  const W* codes;
  int64_t stride_n, stride_k;
  int64_t n, k, columns, depth;
  int64_t ahead;  // codes between these and those that are wanted next

  FX_MEMBER const W* at(int64_t column, int64_t row) const {
    return codes + (n + column) * stride_n + (k + row) * stride_k;
  }
};

// Do all k of a part, no more than a decoding takes, share their scale, and many columns too?
template <class W>
FX_INLINE bool shares_scales(const WeightPart<W>& part, const WeightScale& scale) {
  constexpr int64_t worth_a_table = 16, at_once = 64;
  return scale.values != nullptr && (scale.stride_n == 0 || scale.block_n >= worth_a_table) && part.depth > 0 &&
         part.depth <= at_once && part.k / scale.block_k == (part.k + part.depth - 1) / scale.block_k;
}

// Decodes a part that shares its scales, contiguous in k: the scale is in the table that codes are looked up in.
template <class Isa, class W>
static void decode_by_scaled_tables(bf16* to, const WeightPart<W>& part, const WeightScale& scale) {
  typename Isa::ScaledTable table;
  const float* of_table = nullptr;
  for (int64_t c = 0; c < part.columns; ++c) {
    const ScaleLine line = scales_along_k(scale, part.n + c);
    const float* factor = line.values + part.k / line.block * line.stride;
    if (factor != of_table) Isa::template scale_table<W>(table, *factor);
    of_table = factor;
    const W* from = part.at(c, 0);
    __builtin_prefetch(from + part.ahead, 0, 2);
    Isa::decoded_and_scaled(from, static_cast<int>(part.depth), to + c * part.depth, table);
  }
}

// Decodes the part, in the order in which it lies in memory: the element of column c, row r (of k) is then
// at c · stride_n + r · stride_k of the buffer of columns x depth.
template <class D>
struct DecodedPart {
  const D* values;
  int64_t stride_n, stride_k;
};

template <class Isa, class D, class W>
static DecodedPart<D> decode_part(D* buffer, const WeightPart<W>& part, const WeightScale& scale) {
  if (part.stride_n == 1 && part.stride_k != 1) {
    for (int64_t r = 0; r < part.depth; ++r)
      decode_line<Isa>(buffer + r * part.columns, part.at(0, r), part.columns, scales_along_n(scale, part.k + r),
                       part.n);
    return {buffer, 1, part.columns};
  }
  if constexpr (sizeof(D) < sizeof(float) && requires { typename Isa::ScaledTable; }) {
    if ((part.stride_k == 1 || part.depth <= 1) && shares_scales(part, scale)) {
      decode_by_scaled_tables<Isa>(buffer, part, scale);
      return {buffer, part.depth, 1};
    }
  }
  constexpr int64_t most = 256;
  W gathered[most];
  for (int64_t c = 0; c < part.columns; ++c) {
    const ScaleLine line = scales_along_k(scale, part.n + c);
    D* to = buffer + c * part.depth;
    if (part.stride_k == 1 || part.depth <= 1) {
      const W* from = part.at(c, 0);
      for (int64_t i = 0; i < part.depth; i += 64) __builtin_prefetch(from + part.ahead + i, 0, 2);
      decode_line<Isa>(to, from, part.depth, line, part.k);
      continue;
    }
    for (int64_t r = 0; r < part.depth; r += most) {
      const int64_t count = smaller(part.depth - r, most);
      for (int64_t i = 0; i < count; ++i) gathered[i] = *part.at(c, r + i);
      decode_line<Isa>(to + r, gathered, count, line, part.k + r);
    }
  }
  return {buffer, part.depth, 1};
}

}  // namespace fx
