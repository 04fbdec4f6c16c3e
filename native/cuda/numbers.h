// Small arithmetic of kernels and their launches.
#pragma once

#include "device.h"

namespace fx {

FX_BOTH constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
FX_BOTH constexpr int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }
FX_BOTH constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
FX_BOTH constexpr int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

FX_DEVICE float float_of_bf16(uint32_t bits) { return float_of_bits(bits << 16); }

// An fp32 number as the sum of three bfloat16, exactly (but for numbers near the smallest): bits of each.
// Cut, not rounded, so that no term overflows. Of inf and NaN the sum is NaN.
FX_DEVICE void split(float x, uint32_t (&terms)[3]) {
  FX_UNROLL
  for (int t = 0; t < 3; ++t) {
    const uint32_t high = bits_of_float(x) & 0xffff0000u;
    terms[t] = high >> 16;
    x -= float_of_bits(high);
  }
}

// The products of two numbers, of A and B terms, that fp32 precision needs: which terms, small ones first.
template <int A, int B>
struct Products;

template <>
struct Products<1, 1> {
  static constexpr int count = 1;
  FX_DEVICE static int a(int) { return 0; }
  FX_DEVICE static int b(int) { return 0; }
};

template <>
struct Products<1, 3> {
  static constexpr int count = 3;
  FX_DEVICE static int a(int) { return 0; }
  FX_DEVICE static int b(int i) { return 2 - i; }
};

template <>
struct Products<3, 3> {
  static constexpr int count = 6;  // (0, 2) (1, 1) (2, 0) (0, 1) (1, 0) (0, 0)
  FX_DEVICE static int a(int i) { return 0x010210 >> (4 * i) & 3; }
  FX_DEVICE static int b(int i) { return 0x001012 >> (4 * i) & 3; }
};

}  // namespace fx
