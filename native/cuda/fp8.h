// FP8 as bfloat16: every code has its exact value there.
#pragma once

#include "dtype.h"
#include "numbers.h"

namespace fx {

// How the codes of one format become bfloat16: sign and magnitude are moved into place, which leaves the exponent
// too small by a constant, and are multiplied by that power of two (subnormal codes come out right with it). NaN
// and infinity come out as numbers: they are looked for apart.
struct Fp8Format {
  uint32_t shift;      // of the magnitude, from the upper byte of a half
  uint32_t factor;     // two bfloat16
  uint32_t special;    // bits of a byte that are all set in NaN and infinity ...
  uint32_t increment;  // ... so that this carries out of them
};

FX_DEVICE Fp8Format fp8_format(bool e5m2) {
  if (e5m2) return {3, 0x77807780u, 0x7c7c7c7cu, 0x04040404u};  // 2^112
  return {4, 0x7b807b80u, 0x7f7f7f7fu, 0x01010101u};            // 2^120
}

// Does any of 16 codes stand for NaN or infinity?
FX_DEVICE bool any_special(const Vec16& codes, const Fp8Format& format) {
  uint32_t carried = 0;
  FX_UNROLL
  for (int w = 0; w < 4; ++w) carried |= (codes.word[w] & format.special) + format.increment;
  return (carried & 0x80808080u) != 0;
}

// Bits of one code as bfloat16, whatever it stands for.
FX_DEVICE uint32_t decode_special(uint32_t code, bool e5m2, uint32_t ordinary) {
  const uint32_t sign = (code & 0x80u) << 8, magnitude = code & 0x7fu;
  if (!e5m2) return magnitude == 0x7f ? sign | 0x7fc0u : ordinary;
  return magnitude < 0x7c ? ordinary : magnitude == 0x7c ? sign | 0x7f80u : sign | 0x7fc0u;
}

// Two codes, the lower two bytes of `codes` or with `upper` the others, as two bfloat16.
FX_DEVICE uint32_t decode_pair(uint32_t codes, bool upper, const Fp8Format& format) {
  const uint32_t halves = permute_bytes(codes, 0, upper ? 0x3424u : 0x1404u);  // each code above a zero byte
  return multiply_bf16((halves & 0x80008000u) | ((halves & 0x7f007f00u) >> format.shift), format.factor);
}

// 16 codes as 16 bfloat16, in order.
FX_DEVICE void decode(uint32_t (&out)[8], const Vec16& codes, const Fp8Format& format, bool e5m2) {
  FX_UNROLL
  for (int i = 0; i < 8; ++i) out[i] = decode_pair(codes.word[i / 2], i % 2 == 1, format);
  if (any_special(codes, format)) {
    FX_UNROLL
    for (int i = 0; i < 8; ++i) {
      const uint32_t pair = codes.word[i / 2] >> (16 * (i % 2));
      out[i] = decode_special(pair & 0xffu, e5m2, out[i] & 0xffffu) |
               decode_special(pair >> 8 & 0xffu, e5m2, out[i] >> 16) << 16;
    }
  }
}

// Element `index` of a floating tensor, as fp32.
FX_DEVICE float load_scale(const void* data, Dtype dtype, int64_t index) {
  if (dtype == Dtype::float32) return static_cast<const float*>(data)[index];
  if (dtype == Dtype::float64) return static_cast<float>(static_cast<const double*>(data)[index]);
  const uint32_t bits = static_cast<const uint16_t*>(data)[index];
  if (dtype == Dtype::bfloat16) return float_of_bf16(bits);
  // float16: as fp32 with the same fields its exponent is too small by 112, unless it is inf or NaN
  const uint32_t sign = (bits & 0x8000u) << 16, magnitude = (bits & 0x7fffu) << 13;
  if (magnitude >= 0x7c00u << 13) return float_of_bits(sign | 0x7f800000u | magnitude);
  return float_of_bits(sign | bits_of_float(float_of_bits(magnitude) * float_of_bits(0x77800000u)));
}

}  // namespace fx
