// What every kernel file starts from.
//
// These headers are compiled once for each instruction set into one library. A function with external
// linkage would be merged by the linker across those copies, and a machine without AVX-512 could then
// run the AVX-512 copy. So here every function is either static or a template over the (unnamed-
// namespace) ISA type, and none of the standard library's inline functions are used.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../parallel.h"
#include "../scratch.h"

#define FX_INLINE [[maybe_unused]] static inline __attribute__((always_inline))
#define FX_MEMBER inline __attribute__((always_inline))
#define FX_UNROLL _Pragma("GCC unroll 64")

namespace fx {

// Panels of the GEMM engine are as wide as a multiple of this.
constexpr int64_t column_unit = 16;

// Storage of the element types. Distinct types, so that overloads choose the conversion.
struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};
struct e4m3 {
  uint8_t bits;
};
struct e5m2 {
  uint8_t bits;
};
struct e4m3fnuz {
  uint8_t bits;
};
struct e5m2fnuz {
  uint8_t bits;
};

// An element that is read as max(value, 0); NaN stays.
template <class T>
struct positive {
  T value;
};

// An element that is read as bf16, rounded to nearest.
struct rounded {
  float value;
};

FX_INLINE constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
FX_INLINE constexpr int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
FX_INLINE constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
FX_INLINE constexpr int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

FX_INLINE constexpr float float_of_bits(uint32_t bits) { return __builtin_bit_cast(float, bits); }
FX_INLINE constexpr uint32_t bits_of_float(float value) { return __builtin_bit_cast(uint32_t, value); }

FX_INLINE constexpr float to_float(float value) { return value; }
FX_INLINE constexpr float to_float(bf16 value) { return float_of_bits(static_cast<uint32_t>(value.bits) << 16); }

// Round to nearest, ties to even; a NaN stays a (quiet) NaN.
FX_INLINE constexpr bf16 to_bf16(float value) {
  const uint32_t bits = bits_of_float(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return {static_cast<uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

FX_INLINE constexpr float to_float(f16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000) << 16, magnitude = value.bits & 0x7fff;
  if (magnitude >= 0x7c00) return float_of_bits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  const float result =
      magnitude < 0x400 ? static_cast<float>(magnitude) * 0x1p-24f : float_of_bits((magnitude << 13) + (112u << 23));
  return float_of_bits(sign | bits_of_float(result));
}

FX_INLINE constexpr f16 to_f16(float value) {
  const uint32_t bits = bits_of_float(value), magnitude = bits & 0x7fffffff;
  uint32_t half;
  if (magnitude > 0x7f800000)
    half = 0x7e00 | (magnitude >> 13 & 0x3ff);
  else if (magnitude >= 0x47800000)
    half = 0x7c00;
  else if (magnitude < 0x38800000)  // 0.5 has the place value of a subnormal's last bit: adding it rounds there
    half = bits_of_float(float_of_bits(magnitude) + 0.5f) - bits_of_float(0.5f);
  else
    half = (magnitude + 0xfff + (magnitude >> 13 & 1) - (112u << 23)) >> 13;
  return {static_cast<uint16_t>((bits >> 16 & 0x8000) | half)};
}

// One element as another type.
template <class To, class From>
FX_INLINE constexpr To as(From value) {
  if constexpr (__is_same(To, From))
    return value;
  else
    return to_float(value);
}

// OFP8: a code whose exponent field is zero counts units of the smallest subnormal.
FX_INLINE constexpr float to_float(e4m3 value) {
  const uint32_t magnitude = value.bits & 0x7f, sign = static_cast<uint32_t>(value.bits & 0x80) << 24;
  if (magnitude == 0x7f) return float_of_bits(sign | 0x7fc00000);
  const float result =
      magnitude < 8 ? static_cast<float>(magnitude) * 0x1p-9f : float_of_bits((magnitude << 20) + (120u << 23));
  return float_of_bits(bits_of_float(result) | sign);
}
FX_INLINE constexpr float to_float(e5m2 value) {
  const uint32_t magnitude = value.bits & 0x7f, sign = static_cast<uint32_t>(value.bits & 0x80) << 24;
  if (magnitude > 0x7c) return float_of_bits(sign | 0x7fc00000);
  if (magnitude == 0x7c) return float_of_bits(sign | 0x7f800000);
  const float result =
      magnitude < 4 ? static_cast<float>(magnitude) * 0x1p-16f : float_of_bits((magnitude << 21) + (112u << 23));
  return float_of_bits(bits_of_float(result) | sign);
}

// The FNUZ formats: an exponent bias greater by one, neither infinities nor a negative zero, whose code is NaN.
FX_INLINE constexpr float to_float(e4m3fnuz value) {
  const uint32_t magnitude = value.bits & 0x7f, sign = static_cast<uint32_t>(value.bits & 0x80) << 24;
  if (magnitude == 0) return sign != 0 ? float_of_bits(0x7fc00000) : 0.0f;
  const float result =
      magnitude < 8 ? static_cast<float>(magnitude) * 0x1p-10f : float_of_bits((magnitude << 20) + (119u << 23));
  return float_of_bits(bits_of_float(result) | sign);
}
FX_INLINE constexpr float to_float(e5m2fnuz value) {
  const uint32_t magnitude = value.bits & 0x7f, sign = static_cast<uint32_t>(value.bits & 0x80) << 24;
  if (magnitude == 0) return sign != 0 ? float_of_bits(0x7fc00000) : 0.0f;
  const float result =
      magnitude < 4 ? static_cast<float>(magnitude) * 0x1p-17f : float_of_bits((magnitude << 21) + (111u << 23));
  return float_of_bits(bits_of_float(result) | sign);
}

}  // namespace fx
