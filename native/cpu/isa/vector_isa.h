// A vector ISA written in the compiler's own vector types: its flags decide which instructions these
// become. Files of isa/ use it as it is (portable, avx2, avx512) or derive from it and replace what has
// better instructions (avx512_bf16).
//
// The engine and the ops use an ISA through these names:
//   lanes, F32, I32       floats in a vector, the vector, its integer twin; F32 has + - * / and []
//   tile_rows, panel      rows and columns of the register-blocked tile of the GEMM engine
//   load, store           any float type of base.h -> F32, and F32 -> float, bf16, f16 (round to nearest
//                         even, NaN kept); with a count, elements beyond it are neither read nor written
//   store_two             two vectors, one after the other
//   fma, max, min, sum, maximum, exp, expm1, exp2, select, first, nonzero
//   dot_rows, dot_columns                    outputs of the dot form at once: see engine/dot.inl.h
//   Chunk<T>, chunk_size<T>, chunks, dot     operands of a dot product along memory
//   decoded_at_once, decoded                 FP8 codes along memory as vectors of floats
//   Panel<T>, k_step<T>, broadcast, dot      operands of the GEMM tile: see engine/gemm.inl.h
//   tiles<T>                                 has registers that are matrices of T, and with them
//                                            multiply_panel and multiply_block (see amx_tiles.h) in its place
//   Session                                  lives on the stack of a thread while it multiplies
#pragma once

#include <utility>

#include "../engine/base.h"

namespace fx {

// Written out for each length: GCC wants a vector's size to be a plain constant.
template <int Lanes>
struct VectorTypes;
#define FX_VECTOR_TYPES(N)                                    \
  template <>                                                 \
  struct VectorTypes<N> {                                     \
    typedef float F32 __attribute__((vector_size(4 * N)));    \
    typedef int32_t I32 __attribute__((vector_size(4 * N)));  \
    typedef uint32_t U32 __attribute__((vector_size(4 * N))); \
    typedef uint16_t U16 __attribute__((vector_size(2 * N))); \
    typedef uint8_t U8 __attribute__((vector_size(N)));       \
  };
FX_VECTOR_TYPES(4)
FX_VECTOR_TYPES(8)
FX_VECTOR_TYPES(16)
#undef FX_VECTOR_TYPES

// `Tag` is a type of the including file's unnamed namespace: it keeps each file's copy its own.
template <class Tag, int Lanes, int TileRows, int TileVectors, int DotRows>
struct VectorIsa {
  static constexpr int lanes = Lanes;
  static constexpr int tile_rows = TileRows;
  static constexpr int panel = TileVectors * Lanes;
  static constexpr int dot_rows = DotRows, dot_columns = 4;

  template <class T>
  static constexpr bool tiles = false;
  struct Session {
    FX_MEMBER Session() {}  // not trivial: a variable that only lives is no unused one
  };

  using F32 = typename VectorTypes<Lanes>::F32;
  using I32 = typename VectorTypes<Lanes>::I32;
  using U32 = typename VectorTypes<Lanes>::U32;
  using U16 = typename VectorTypes<Lanes>::U16;
  using U8 = typename VectorTypes<Lanes>::U8;

  static FX_MEMBER F32 zero() { return F32{}; }
  static FX_MEMBER F32 splat(float value) { return F32{} + value; }
  static FX_MEMBER U32 splat_bits(uint32_t value) { return U32{} + value; }
  static FX_MEMBER F32 splat_as_float(uint32_t bits) { return (F32)splat_bits(bits); }

  template <class V, class T>
  static FX_MEMBER V read(const T* from) {
    V value;
    __builtin_memcpy(&value, from, sizeof(V));
    return value;
  }
  template <class V, class T>
  static FX_MEMBER V read(const T* from, int count) {
    V value{};
    __builtin_memcpy(&value, from, sizeof(T) * static_cast<size_t>(count));
    return value;
  }

  static FX_MEMBER F32 widen(F32 value, const float*) { return value; }
  static FX_MEMBER F32 widen(U16 bits, const bf16*) { return (F32)(__builtin_convertvector(bits, U32) << 16); }
  static FX_MEMBER F32 widen(U16 bits, const f16*) {
    const U32 code = __builtin_convertvector(bits, U32), magnitude = code & 0x7fff;
    // Subnormals: put the fraction under an implicit one, and take that one away again, exactly.
    const F32 subnormal = (F32)((magnitude << 13) + (113u << 23)) - 0x1p-14f;
    const F32 normal = (F32)((magnitude << 13) + (112u << 23));
    const F32 special = (F32)((magnitude << 13) | 0x7f800000);  // inf, or NaN with its fraction
    const F32 value = select(magnitude > 0x7bff, special, select(magnitude < 0x400, subnormal, normal));
    return (F32)((U32)value | (code & 0x8000) << 16);
  }
  static FX_MEMBER F32 widen(U8 codes, const e4m3*) {
    const U32 code = __builtin_convertvector(codes, U32), magnitude = code & 0x7f;
    // Subnormals: put the fraction under an implicit one, and take that one away again, exactly.
    const F32 subnormal = (F32)((magnitude << 20) + (121u << 23)) - 0x1p-6f;
    const F32 normal = (F32)((magnitude << 20) + (120u << 23));
    U32 bits = (U32)select(magnitude < 8, subnormal, normal);
    bits = (U32)select(magnitude == 0x7f, splat(float_of_bits(0x7fc00000)), (F32)bits);
    return (F32)(bits | (code & 0x80) << 24);
  }
  static FX_MEMBER F32 widen(U8 codes, const e5m2*) {
    const U32 code = __builtin_convertvector(codes, U32), magnitude = code & 0x7f;
    const F32 subnormal = (F32)((magnitude << 21) + (113u << 23)) - 0x1p-14f;
    const F32 normal = (F32)((magnitude << 21) + (112u << 23));
    const F32 special = (F32)((magnitude << 21) | 0x7f800000);  // inf, or NaN with its fraction
    const F32 value = select(magnitude > 0x7b, special, select(magnitude < 4, subnormal, normal));
    return (F32)((U32)value | (code & 0x80) << 24);
  }

  // FNUZ: the code of a negative zero is NaN, and no other is special.
  static FX_MEMBER F32 widen(U8 codes, const e4m3fnuz*) {
    const U32 code = __builtin_convertvector(codes, U32), magnitude = code & 0x7f;
    const F32 subnormal = (F32)((magnitude << 20) + (120u << 23)) - 0x1p-7f;
    const F32 normal = (F32)((magnitude << 20) + (119u << 23));
    const F32 value = select(code == 0x80, splat(float_of_bits(0x7fc00000)), select(magnitude < 8, subnormal, normal));
    return (F32)((U32)value | (code & 0x80) << 24);
  }
  static FX_MEMBER F32 widen(U8 codes, const e5m2fnuz*) {
    const U32 code = __builtin_convertvector(codes, U32), magnitude = code & 0x7f;
    const F32 subnormal = (F32)((magnitude << 21) + (112u << 23)) - 0x1p-15f;
    const F32 normal = (F32)((magnitude << 21) + (111u << 23));
    const F32 value = select(code == 0x80, splat(float_of_bits(0x7fc00000)), select(magnitude < 4, subnormal, normal));
    return (F32)((U32)value | (code & 0x80) << 24);
  }

  static FX_MEMBER F32 load(const float* p) { return read<F32>(p); }
  static FX_MEMBER F32 load(const e4m3fnuz* p) { return widen(read<U8>(p), p); }
  static FX_MEMBER F32 load(const e5m2fnuz* p) { return widen(read<U8>(p), p); }
  static FX_MEMBER F32 load(const e4m3fnuz* p, int count) { return widen(read<U8>(p, count), p); }
  static FX_MEMBER F32 load(const e5m2fnuz* p, int count) { return widen(read<U8>(p, count), p); }
  static FX_MEMBER F32 load(const bf16* p) { return widen(read<U16>(p), p); }
  static FX_MEMBER F32 load(const f16* p) { return widen(read<U16>(p), p); }
  static FX_MEMBER F32 load(const e4m3* p) { return widen(read<U8>(p), p); }
  static FX_MEMBER F32 load(const e5m2* p) { return widen(read<U8>(p), p); }
  static FX_MEMBER F32 load(const float* p, int count) { return read<F32>(p, count); }
  static FX_MEMBER F32 load(const bf16* p, int count) { return widen(read<U16>(p, count), p); }
  static FX_MEMBER F32 load(const f16* p, int count) { return widen(read<U16>(p, count), p); }
  static FX_MEMBER F32 load(const e4m3* p, int count) { return widen(read<U8>(p, count), p); }
  static FX_MEMBER F32 load(const e5m2* p, int count) { return widen(read<U8>(p, count), p); }

  template <class T>
  static FX_MEMBER F32 load(const positive<T>* p) {
    return max(zero(), load(&p->value));
  }
  template <class T>
  static FX_MEMBER F32 load(const positive<T>* p, int count) {
    return max(zero(), load(&p->value, count));
  }

  // To binary16: round to nearest even, an overflow is infinity, NaN stays.
  static FX_MEMBER U16 narrow_to_f16(F32 value) {
    const U32 bits = (U32)value, magnitude = bits & 0x7fffffff;
    // 0.5 has the place value of a subnormal's last bit: adding it rounds there.
    const U32 subnormal = (U32)((F32)magnitude + 0.5f) - bits_of_float(0.5f);
    const U32 normal = (magnitude + 0xfff + (magnitude >> 13 & 1) - (112u << 23)) >> 13;
    const U32 large =
        (U32)select(magnitude > 0x7f800000, (F32)(0x7e00 | (magnitude >> 13 & 0x3ff)), (F32)splat_bits(0x7c00));
    U32 half = (U32)select(magnitude < 0x38800000, (F32)subnormal, (F32)normal);
    half = (U32)select(magnitude >= 0x47800000, (F32)large, (F32)half);
    return __builtin_convertvector((bits >> 16 & 0x8000) | half, U16);
  }
  static FX_MEMBER U16 narrow(F32 value) {
    const U32 bits = (U32)value;
    const U32 rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40;
    const U32 is_nan = (U32)((bits & 0x7fffffff) > 0x7f800000);
    return __builtin_convertvector((is_nan & quiet) | (~is_nan & rounded), U16);
  }
  static FX_MEMBER void store(float* p, F32 value) { __builtin_memcpy(p, &value, sizeof value); }
  static FX_MEMBER void store(bf16* p, F32 value) {
    const U16 bits = narrow(value);
    __builtin_memcpy(p, &bits, sizeof bits);
  }
  static FX_MEMBER void store(f16* p, F32 value) {
    const U16 bits = narrow_to_f16(value);
    __builtin_memcpy(p, &bits, sizeof bits);
  }
  static FX_MEMBER void store(float* p, F32 value, int count) {
    __builtin_memcpy(p, &value, sizeof(float) * static_cast<size_t>(count));
  }
  static FX_MEMBER void store(bf16* p, F32 value, int count) {
    const U16 bits = narrow(value);
    __builtin_memcpy(p, &bits, sizeof(bf16) * static_cast<size_t>(count));
  }

  static FX_MEMBER void store(f16* p, F32 value, int count) {
    const U16 bits = narrow_to_f16(value);
    __builtin_memcpy(p, &bits, sizeof(f16) * static_cast<size_t>(count));
  }
  template <class T>
  static FX_MEMBER void store_two(T* p, F32 first, F32 second) {
    store(p, first), store(p + Lanes, second);
  }

  // a·b + c, fused where the ISA can (the files of isa/ are built with -ffp-contract=fast).
  static FX_MEMBER F32 fma(F32 a, F32 b, F32 c) { return a * b + c; }
  // Lanes of `mask` are all ones (yes) or all zeros (no), as comparisons of vectors give.
  template <class Mask>
  static FX_MEMBER F32 select(Mask mask, F32 yes, F32 no) {
    return (F32)(((U32)mask & (U32)yes) | (~(U32)mask & (U32)no));
  }
  // A mask for select(): which of `count` bytes are not zero.
  static FX_MEMBER U32 nonzero(const uint8_t* p, int count) {
    const U8 bytes = count == Lanes ? read<U8>(p) : read<U8>(p, count);
    return (U32)(__builtin_convertvector(bytes, U32) != 0);
  }
  // The first `count` lanes of `value`, and the rest of `rest`.
  static FX_MEMBER F32 first(int count, F32 value, F32 rest) {
    I32 lane{};
    FX_UNROLL
    for (int i = 0; i < Lanes; ++i) lane[i] = i;
    return select(lane < count, value, rest);
  }
  // As the hardware's: where either is NaN, the second.
  static FX_MEMBER F32 max(F32 a, F32 b) { return select(a > b, a, b); }
  static FX_MEMBER F32 min(F32 a, F32 b) { return select(a < b, a, b); }

  static FX_MEMBER float sum(F32 v) {
    float parts[Lanes];
    store(parts, v);
    FX_UNROLL
    for (int width = Lanes / 2; width > 0; width /= 2) FX_UNROLL
    for (int i = 0; i < width; ++i) parts[i] += parts[i + width];
    return parts[0];
  }
  static FX_MEMBER float maximum(F32 v) {
    float best = v[0];
    FX_UNROLL
    for (int i = 1; i < Lanes; ++i) best = best > v[i] ? best : v[i];
    return best;
  }

  // Exchanges half-blocks of two vectors: lanes whose index has bit `half` set in a, with those where it is
  // clear in b. One stage of a transposition, or of many sums at once.
  static constexpr int source_of_a(int half, int lane) { return lane & half ? Lanes + lane - half : lane; }
  static constexpr int source_of_b(int half, int lane) { return lane & half ? Lanes + lane : lane + half; }
  template <int half, class V>
  static FX_MEMBER void exchange(V& a, V& b) {
#ifdef __clang__
    exchange<half>(a, b, std::make_integer_sequence<int, Lanes>());
  }
  template <int half, class V, int... lane>
  static FX_MEMBER void exchange(V& a, V& b, std::integer_sequence<int, lane...>) {
    const V low = __builtin_shufflevector(a, b, source_of_a(half, lane)...);
    b = __builtin_shufflevector(a, b, source_of_b(half, lane)...);
    a = low;
#else
    I32 first{}, second{};
    FX_UNROLL
    for (int lane = 0; lane < Lanes; ++lane) {
      first[lane] = source_of_a(half, lane);
      second[lane] = source_of_b(half, lane);
    }
    const V low = __builtin_shuffle(a, b, first);
    b = __builtin_shuffle(a, b, second);
    a = low;
#endif
  }
  // Neighbouring lanes (2i, 2i + 1) change places.
  static FX_MEMBER F32 swap_pairs(F32 v) {
#ifdef __clang__
    return swap_pairs(v, std::make_integer_sequence<int, Lanes>());
  }
  template <int... lane>
  static FX_MEMBER F32 swap_pairs(F32 v, std::integer_sequence<int, lane...>) {
    return __builtin_shufflevector(v, v, (lane ^ 1)...);
#else
    I32 from{};
    FX_UNROLL
    for (int lane = 0; lane < Lanes; ++lane) from[lane] = lane ^ 1;
    return __builtin_shuffle(v, from);
#endif
  }
  // Complex products of the lanes' pairs (re, im).
  static FX_MEMBER F32 turn_pairs(F32 v, F32 by) {
    F32 re = v, im = v;
    exchange<1>(re, im);  // (re, re, ...) and (im, im, ...)
    I32 minus{};
    FX_UNROLL
    for (int lane = 0; lane < Lanes; lane += 2) minus[lane] = static_cast<int32_t>(0x80000000u);
    return fma(re, by, im * (F32)((I32)swap_pairs(by) ^ minus));
  }
  // rows[i][j] <-> rows[j][i]
  template <int half = Lanes / 2, class V>
  static FX_MEMBER void transpose(V (&rows)[Lanes]) {
    FX_UNROLL
    for (int i = 0; i < Lanes; ++i) {
      if (!(i & half)) exchange<half>(rows[i], rows[i + half]);
    }
    if constexpr (half > 1) transpose<half / 2>(rows);
  }
  // Lane i of the result is the sum of the lanes of rows[i], which are used up.
  template <int half = Lanes / 2>
  static FX_MEMBER F32 sum_each(F32 (&rows)[Lanes]) {
    FX_UNROLL
    for (int i = 0; i < half; ++i) {
      exchange<half>(rows[i], rows[i + half]);
      rows[i] += rows[i + half];
    }
    if constexpr (half > 1)
      return sum_each<half / 2>(rows);
    else
      return rows[0];
  }

  // To the nearest integer, for |v| < 2^22: adding 1.5·2^23 leaves no bits for a fraction.
  static FX_MEMBER F32 round(F32 v) { return (v + 0x1.8p23f) - 0x1.8p23f; }
  // v·2^n for integral n within ±250: in two steps, so that the result may be subnormal.
  static FX_MEMBER F32 scale_by_power(F32 v, F32 n) {
    const I32 whole = __builtin_convertvector(n, I32), half = whole >> 1, rest = whole - half;
    return v * (F32)((half + 127) << 23) * (F32)((rest + 127) << 23);
  }
  static constexpr float log2_e = 0x1.715476p0f;
  static FX_MEMBER F32 exp(F32 x);
  static FX_MEMBER F32 expm1(F32 x);
  static FX_MEMBER F32 expm1_near_zero(F32 x, F32 n);
  static FX_MEMBER F32 exp_near_zero(F32 x, F32 n) { return expm1_near_zero(x, n) + 1.0f; }
  // 2^x to the precision of bf16, for x <= 127; 2^0 is 1 exactly, and -inf and NaN are as for exp.
  static FX_MEMBER F32 exp2(F32 x) {
    x = max(splat(-160.0f), x);
    const F32 n = round(x - 0.5f);
    return scale_by_power(exp2_of_fraction(x - n), n);
  }
  // The same for x in [0, 1]: minimax, 9e-5 in relative error, a twentieth of what bf16 rounds away.
  static FX_MEMBER F32 exp2_of_fraction(F32 x) {
    F32 p = fma(splat(0x1.3baaacp-4f), x, splat(0x1.d23786p-3f));
    p = fma(p, x, splat(0x1.63e65ap-1f));
    return fma(p, x, splat(1.0f));
  }

  // Operands of a dot product along contiguous memory, chunk_size elements at once.
  template <class T>
  using Chunk = F32;
  template <class T>
  static constexpr int chunk_size = Lanes;
  // Chunks that one load gives (more than one where bytes decode several at once).
  template <class T>
  static constexpr int chunks_at_once = 1;
  template <class T>
  static FX_MEMBER void chunks(const T* p, F32 (&out)[1]) {
    out[0] = load(p);
  }
  template <class T>
  static FX_MEMBER void chunks(const T* p, int count, F32 (&out)[1]) {
    out[0] = load(p, count);
  }
  static FX_MEMBER F32 dot(F32 a, F32 b, F32 sum) { return fma(a, b, sum); }

  // FP8 codes as floats, as many vectors as one decoding gives.
  static constexpr int decoded_at_once = 1;
  template <class T>
  static FX_MEMBER void decoded(const T* p, F32 (&out)[1]) {
    out[0] = load(p);
  }
  template <class T>
  static FX_MEMBER void decoded(const T* p, int count, F32 (&out)[1]) {
    out[0] = load(p, count);
  }

  // Operands of the GEMM tile: a panel holds floats, one k at a time.
  template <class T>
  using Panel = float;
  template <class T>
  static constexpr int k_step = 1;
  // One vector of a panel: columns n.. of row k (of rows k, k + 1 where k_step is 2) of a source whose
  // columns, or whose k, are contiguous.
  template <class T>
  static FX_MEMBER F32 panel_of_columns(const T* row, const T* /*next*/, int count) {
    return load(row, count);
  }
  template <class T>
  static FX_MEMBER F32 panel_of_k(const T* column) {
    return load(column);
  }
  template <class T>
  static FX_MEMBER F32 panel_of_k(const T* column, int count) {
    return load(column, count);
  }
  static FX_MEMBER F32 panel_load(const float* p) { return load(p); }
  static FX_MEMBER void panel_store(float* p, F32 v) { store(p, v); }
  template <class T>
  static FX_MEMBER F32 broadcast(const T* a) {
    return splat(to_float(*a));
  }
  template <class T>
  static FX_MEMBER F32 broadcast_last(const T* a) {
    return broadcast(a);
  }
};

// exp to about 1 ulp: x = n·ln 2 + r with ln 2 in two parts, a polynomial in r, then 2^n.
// -inf gives 0, inf gives inf, NaN stays; results below the normal range are subnormal, then 0.
template <class Tag, int Lanes, int TileRows, int TileVectors, int DotRows>
FX_MEMBER auto VectorIsa<Tag, Lanes, TileRows, TileVectors, DotRows>::exp(F32 x) -> F32 {
  const F32 low = splat(-105.0f), high = splat(89.0f);  // beyond these the result is 0 or inf anyway
  x = min(high, max(low, x));
  const F32 n = round(x * log2_e);
  return scale_by_power(exp_near_zero(x, n), n);
}

// e^x - 1 to about 2 ulp, the ulp that of the result.
template <class Tag, int Lanes, int TileRows, int TileVectors, int DotRows>
FX_MEMBER auto VectorIsa<Tag, Lanes, TileRows, TileVectors, DotRows>::expm1(F32 x) -> F32 {
  x = min(splat(87.0f), max(splat(-30.0f), x));
  const F32 n = round(x * log2_e), power = scale_by_power(splat(1.0f), n);
  return fma(power, expm1_near_zero(x, n), power - 1.0f);
}

// e^(x - n·ln 2) - 1 for n the integer nearest to x / ln 2.
template <class Tag, int Lanes, int TileRows, int TileVectors, int DotRows>
FX_MEMBER auto VectorIsa<Tag, Lanes, TileRows, TileVectors, DotRows>::expm1_near_zero(F32 x, F32 n) -> F32 {
  const F32 r = fma(n, splat(-0x1.7f7d1cp-20f), fma(n, splat(-0x1.62e4p-1f), x));
  F32 p = splat(0x1.6a1a6ep-10f);
  p = fma(p, r, splat(0x1.123fc6p-7f));
  p = fma(p, r, splat(0x1.555916p-5f));
  p = fma(p, r, splat(0x1.55548ap-3f));
  p = fma(p, r, splat(0x1.fffffcp-2f));
  return fma(p * r, r, r);
}

}  // namespace fx
