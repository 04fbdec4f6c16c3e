// AVX-512 with BF16 dot products and VBMI byte permutes: Zen 4 and newer, Sapphire Rapids and newer.
//
// vdpbf16ps adds two products of neighbouring bf16 to each fp32 sum; it takes and gives subnormals as
// zero. Panels hold pairs of k side by side for it, and FP8 codes become bf16, in which each is exact.
//
// The unnamed namespace is meant: each level that includes this has a copy of its own (see engine/base.h).
#pragma once

#include <immintrin.h>

#include "vector_isa.h"

namespace fx {

namespace {

struct Avx512Bf16Tag {};

template <class T>
struct Operand {
  using Chunk = __m512bh;
  using HalfChunk = __m256bh;
  using Panel = uint32_t;  // two bf16, the lower k in the lower half
  static constexpr int chunk_size = 32, chunks_at_once = 1, k_step = 2;
};
template <>
struct Operand<float> {
  using Chunk = __m512;
  using HalfChunk = __m256;
  using Panel = float;
  static constexpr int chunk_size = 16, chunks_at_once = 1, k_step = 1;
};
template <>
struct Operand<f16> : Operand<float> {};
template <class T>
struct Operand<positive<T>> : Operand<T> {};
template <>
struct Operand<e4m3> : Operand<bf16> {
  static constexpr int chunks_at_once = 2;
};
template <>
struct Operand<e5m2> : Operand<e4m3> {};
template <>
struct Operand<e4m3fnuz> : Operand<e4m3> {};
template <>
struct Operand<e5m2fnuz> : Operand<e4m3> {};

// The bf16 bits of a format's 128 non-negative codes, as tables of their lower and upper bytes.
struct alignas(64) DecodeTable {
  uint8_t low[128], high[128];
};

template <class T>
constexpr DecodeTable decode_table_of() {
  DecodeTable table{};
  for (int code = 0; code < 128; ++code) {
    const uint32_t bits = bits_of_float(to_float(T{static_cast<uint8_t>(code)})) >> 16;
    table.low[code] = static_cast<uint8_t>(bits);
    table.high[code] = static_cast<uint8_t>(bits >> 8);
  }
  return table;
}

template <class T>
constexpr DecodeTable decode_table = decode_table_of<T>();

// The 128 non-negative codes as floats.
template <class T>
struct alignas(64) DecodedCodes {
  float values[128];

  constexpr DecodedCodes() : values{} {
    for (int code = 0; code < 128; ++code) values[code] = to_float(T{static_cast<uint8_t>(code)});
  }
};

template <class T>
constexpr DecodedCodes<T> decoded_codes;

template <class T>
constexpr bool negative_zero_is_nan = to_float(T{0x80}) != to_float(T{0x80});

// Half a vector, of which the machine multiplies two at once: for the last columns of a panel.
struct Avx512Bf16HalfTag {};
struct Avx512Bf16Half : VectorIsa<Avx512Bf16HalfTag, 8, 12, 1, 1> {
  template <class T>
  using Chunk = typename Operand<T>::HalfChunk;
  template <class T>
  using Panel = typename Operand<T>::Panel;
  template <class T>
  static constexpr int k_step = Operand<T>::k_step;

  static FX_MEMBER __m256 panel_load(const float* p) { return _mm256_loadu_ps(p); }
  static FX_MEMBER __m256bh panel_load(const uint32_t* p) {
    return (__m256bh)_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static FX_MEMBER __m256 broadcast(const float* a) { return _mm256_set1_ps(*a); }
  static FX_MEMBER __m256bh broadcast(const bf16* a) {
    int32_t pair;
    __builtin_memcpy(&pair, a, sizeof pair);
    return (__m256bh)_mm256_set1_epi32(pair);
  }
  static FX_MEMBER __m256bh broadcast(const uint32_t* a) { return (__m256bh)_mm256_set1_epi32(static_cast<int>(*a)); }
  static FX_MEMBER __m256 broadcast_last(const float* a) { return broadcast(a); }
  static FX_MEMBER __m256bh broadcast_last(const bf16* a) { return (__m256bh)_mm256_set1_epi32(a->bits); }
  static FX_MEMBER F32 dot(__m256 a, __m256 b, F32 sum) { return _mm256_fmadd_ps(a, b, sum); }
  static FX_MEMBER F32 dot(__m256bh a, __m256bh b, F32 sum) { return _mm256_dpbf16_ps(sum, a, b); }
};

// Thirty-two vector registers: 6 x 4 sums, four of a panel, one of the rows.
struct Avx512Bf16 : VectorIsa<Avx512Bf16Tag, 16, 6, 4, 6> {
  using Base = VectorIsa<Avx512Bf16Tag, 16, 6, 4, 6>;

  static FX_MEMBER __mmask16 first16(int count) { return static_cast<__mmask16>(_bzhi_u32(0xffff, count)); }
  static FX_MEMBER __mmask32 first32(int count) { return _bzhi_u32(0xffffffff, count); }
  static FX_MEMBER __mmask64 first64(int count) { return _bzhi_u64(~0ull, count); }

  using Base::load;
  using Base::store;
  static FX_MEMBER __m512 load(const float* p, int count) { return _mm512_maskz_loadu_ps(first16(count), p); }
  static FX_MEMBER __m512 load(const bf16* p, int count) { return widen(_mm256_maskz_loadu_epi16(first16(count), p)); }
  static FX_MEMBER __m512 load(const f16* p, int count) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first16(count), p));
  }
  static FX_MEMBER __m512 load(const f16* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static FX_MEMBER __m512 load(const bf16* p) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static FX_MEMBER __m512 load(const rounded* p, int count) {
    return widen((__m256i)_mm512_cvtneps_pbh(load(&p->value, count)));
  }
  static FX_MEMBER void store(float* p, F32 value, int count) { _mm512_mask_storeu_ps(p, first16(count), value); }
  static FX_MEMBER void store(bf16* p, F32 value) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(value));
  }
  static FX_MEMBER void store(bf16* p, F32 value, int count) {
    _mm256_mask_storeu_epi16(p, first16(count), (__m256i)_mm512_cvtneps_pbh(value));
  }
  static FX_MEMBER void store(f16* p, F32 value) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
  }
  static FX_MEMBER void store(f16* p, F32 value, int count) {
    _mm256_mask_storeu_epi16(p, first16(count), _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
  }
  using Base::store_two;
  static FX_MEMBER void store_two(bf16* p, F32 first, F32 second) {
    _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(second, first));
  }
  using Half = Avx512Bf16Half;
  static FX_MEMBER F32 widen_half(__m256 half) { return _mm512_zextps256_ps512(half); }
  static FX_MEMBER __m512 widen(__m256i bits) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }

  static FX_MEMBER F32 fma(F32 a, F32 b, F32 c) { return _mm512_fmadd_ps(a, b, c); }
  static FX_MEMBER F32 max(F32 a, F32 b) { return _mm512_max_ps(a, b); }
  static FX_MEMBER F32 min(F32 a, F32 b) { return _mm512_min_ps(a, b); }
  using Base::select;
  static FX_MEMBER __m512 select(__mmask16 mask, F32 yes, F32 no) { return _mm512_mask_blend_ps(mask, no, yes); }
  static FX_MEMBER F32 first(int count, F32 value, F32 rest) { return _mm512_mask_mov_ps(rest, first16(count), value); }
  static FX_MEMBER __mmask16 nonzero(const uint8_t* p, int count) {
    const __m128i bytes = _mm_maskz_loadu_epi8(first16(count), p);
    return _mm_test_epi8_mask(bytes, bytes);
  }
  static FX_MEMBER F32 exp(F32 x) {
    x = min(Base::splat(89.0f), max(Base::splat(-105.0f), x));
    const F32 n = _mm512_roundscale_ps(x * Base::log2_e, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm512_scalef_ps(Base::exp_near_zero(x, n), n);
  }
  // The fraction above the floor is one instruction, and the scaling takes the floor itself; both do what
  // is wanted with -inf.
  static FX_MEMBER F32 exp2(F32 x) {
    constexpr int above_floor = 0x09;
    return _mm512_scalef_ps(Base::exp2_of_fraction(_mm512_reduce_ps(x, above_floor)), x);
  }
  static FX_MEMBER float sum(F32 v) { return _mm512_reduce_add_ps(v); }
  static FX_MEMBER float maximum(F32 v) { return _mm512_reduce_max_ps(v); }

  template <class T>
  using Chunk = typename Operand<T>::Chunk;
  template <class T>
  static constexpr int chunk_size = Operand<T>::chunk_size;
  template <class T>
  static constexpr int chunks_at_once = Operand<T>::chunks_at_once;

  static FX_MEMBER void chunks(const float* p, __m512 (&out)[1]) { out[0] = _mm512_loadu_ps(p); }
  static FX_MEMBER void chunks(const float* p, int count, __m512 (&out)[1]) { out[0] = load(p, count); }
  static FX_MEMBER void chunks(const f16* p, __m512 (&out)[1]) { out[0] = load(p); }
  static FX_MEMBER void chunks(const f16* p, int count, __m512 (&out)[1]) { out[0] = load(p, count); }
  static FX_MEMBER void chunks(const bf16* p, __m512bh (&out)[1]) { out[0] = (__m512bh)_mm512_loadu_si512(p); }
  static FX_MEMBER void chunks(const bf16* p, int count, __m512bh (&out)[1]) {
    out[0] = (__m512bh)_mm512_maskz_loadu_epi16(first32(count), p);
  }
  template <class T>
  static FX_MEMBER void chunks(const T* p, __m512bh (&out)[2]) {
    decode<T>(_mm512_loadu_si512(p), out);
  }
  template <class T>
  static FX_MEMBER void chunks(const T* p, int count, __m512bh (&out)[2]) {
    decode<T>(_mm512_maskz_loadu_epi8(first64(count), p), out);
  }

  // Sixty-four codes: look up the two bytes of each, put the sign in, and interleave them.
  template <class T>
  static FX_MEMBER void decode(__m512i codes, __m512bh (&out)[2], const DecodeTable& table = decode_table<T>) {
    // Interleaving works within quarters, so the quadwords change places first.
    codes = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), codes);
    __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(table.low), codes, _mm512_load_si512(table.low + 64));
    const __m512i high =
        _mm512_permutex2var_epi8(_mm512_load_si512(table.high), codes, _mm512_load_si512(table.high + 64));
    constexpr int xor_and = 0x78;  // a ^ (b & c): the table may be of negative numbers
    __m512i top = _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8(-128), xor_and);
    if constexpr (negative_zero_is_nan<T>) {
      const __mmask64 nan = _mm512_cmpeq_epi8_mask(codes, _mm512_set1_epi8(-128));
      low = _mm512_mask_mov_epi8(low, nan, _mm512_set1_epi8(-1));
      top = _mm512_mask_mov_epi8(top, nan, _mm512_set1_epi8(-1));
    }
    out[0] = (__m512bh)_mm512_unpacklo_epi8(low, top);
    out[1] = (__m512bh)_mm512_unpackhi_epi8(low, top);
  }

  // The table of a format times a factor, to look up what is decoded and scaled at once.
  using ScaledTable = DecodeTable;
  template <class T>
  static FX_MEMBER void scale_table(DecodeTable& to, float factor) {
    const __m512 by = _mm512_set1_ps(factor);
    const float* from = decoded_codes<T>.values;
    FX_UNROLL
    for (int i = 0; i < 128; i += 32) {
      const __m512i bits = (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(_mm512_load_ps(from + i + 16), by),
                                                        _mm512_mul_ps(_mm512_load_ps(from + i), by));
      _mm256_store_si256(reinterpret_cast<__m256i*>(to.low + i), _mm512_cvtepi16_epi8(bits));
      _mm256_store_si256(reinterpret_cast<__m256i*>(to.high + i), _mm512_cvtepi16_epi8(_mm512_srli_epi16(bits, 8)));
    }
  }
  template <class T>
  static FX_MEMBER void decoded_and_scaled(const T* p, int count, bf16* to, const DecodeTable& table) {
    __m512bh halves[2];
    const __mmask64 valid = first64(count);
    decode<T>(_mm512_maskz_loadu_epi8(valid, p), halves, table);
    _mm512_mask_storeu_epi16(to, static_cast<__mmask32>(valid), (__m512i)halves[0]);
    _mm512_mask_storeu_epi16(to + 32, static_cast<__mmask32>(valid >> 32), (__m512i)halves[1]);
  }

  static constexpr int decoded_at_once = 4;
  template <class T>
  static FX_MEMBER void decoded(const T* p, F32 (&out)[4]) {
    decode_to_floats<T>(_mm512_loadu_si512(p), out);
  }
  template <class T>
  static FX_MEMBER void decoded(const T* p, int count, F32 (&out)[4]) {
    decode_to_floats<T>(_mm512_maskz_loadu_epi8(first64(count), p), out);
  }
  template <class T>
  static FX_MEMBER void decoded(const T* p, bf16* to) {
    __m512bh halves[2];
    decode<T>(_mm512_loadu_si512(p), halves);
    _mm512_storeu_si512(to, (__m512i)halves[0]);
    _mm512_storeu_si512(to + 32, (__m512i)halves[1]);
  }
  template <class T>
  static FX_MEMBER void decoded(const T* p, int count, bf16* to) {
    __m512bh halves[2];
    decode<T>(_mm512_maskz_loadu_epi8(first64(count), p), halves);
    const __mmask64 valid = first64(count);
    _mm512_mask_storeu_epi16(to, static_cast<__mmask32>(valid), (__m512i)halves[0]);
    _mm512_mask_storeu_epi16(to + 32, static_cast<__mmask32>(valid >> 32), (__m512i)halves[1]);
  }
  template <class T>
  static FX_MEMBER void decode_to_floats(__m512i codes, F32 (&out)[4]) {
    __m512bh halves[2];
    decode<T>(codes, halves);
    FX_UNROLL
    for (int i = 0; i < 2; ++i) {
      out[2 * i] = widen(_mm512_castsi512_si256((__m512i)halves[i]));
      out[2 * i + 1] = widen(_mm512_extracti64x4_epi64((__m512i)halves[i], 1));
    }
  }

  using Base::dot;
  static FX_MEMBER F32 dot(__m512bh a, __m512bh b, F32 sum) { return _mm512_dpbf16_ps(sum, a, b); }

  template <class T>
  using Panel = typename Operand<T>::Panel;
  template <class T>
  static constexpr int k_step = Operand<T>::k_step;

  static FX_MEMBER __m512 panel_load(const float* p) { return _mm512_loadu_ps(p); }
  static FX_MEMBER __m512bh panel_load(const uint32_t* p) { return (__m512bh)_mm512_loadu_si512(p); }
  static FX_MEMBER void panel_store(float* p, F32 v) { _mm512_storeu_ps(p, v); }
  static FX_MEMBER void panel_store(uint32_t* p, F32 v) { _mm512_storeu_ps(p, v); }

  static FX_MEMBER __m512 broadcast(const float* a) { return _mm512_set1_ps(*a); }
  static FX_MEMBER __m512bh broadcast(const bf16* a) {
    int32_t pair;
    __builtin_memcpy(&pair, a, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
  }
  static FX_MEMBER __m512bh broadcast(const uint32_t* a) { return (__m512bh)_mm512_set1_epi32(static_cast<int>(*a)); }
  static FX_MEMBER __m512 broadcast_last(const float* a) { return broadcast(a); }
  static FX_MEMBER __m512bh broadcast_last(const bf16* a) { return (__m512bh)_mm512_set1_epi32(a->bits); }

  // Sixteen bytes, four times; elements from `count` on are zero.
  static FX_MEMBER __m512 repeat_quarter(const float* a) { return _mm512_broadcast_f32x4(_mm_loadu_ps(a)); }
  static FX_MEMBER __m512 repeat_quarter(const float* a, int count) {
    return _mm512_broadcast_f32x4(_mm_maskz_loadu_ps(static_cast<__mmask8>(_bzhi_u32(0xf, count)), a));
  }
  static FX_MEMBER __m512bh repeat_quarter(const bf16* a) {
    return (__m512bh)_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a)));
  }
  static FX_MEMBER __m512bh repeat_quarter(const bf16* a, int count) {
    return (__m512bh)_mm512_broadcast_i32x4(_mm_maskz_loadu_epi16(static_cast<__mmask8>(_bzhi_u32(0xff, count)), a));
  }

  // The first `Count` lanes of each quarter, one behind the other; beyond them anything.
  template <int Count>
  static FX_MEMBER F32 first_of_quarters(F32 v) {
    if constexpr (Count == 4) return v;
    return _mm512_maskz_compress_ps(static_cast<__mmask16>(((1 << Count) - 1) * 0x1111), v);
  }

  static FX_MEMBER F32 panel_of_columns(const float* row, const float*, int count) { return load(row, count); }
  static FX_MEMBER F32 panel_of_columns(const f16* row, const f16*, int count) { return load(row, count); }
  static FX_MEMBER F32 panel_of_columns(const positive<float>* row, const positive<float>*, int count) {
    return load(row, count);
  }
  template <class T>
  static FX_MEMBER F32 panel_of_columns(const T* row, const T* next, int count) {
    const U32 low = (U32)load(row, count) >> 16;
    const U32 high = next == nullptr ? U32{} : (U32)load(next, count) & 0xffff0000;
    return (F32)(low | high);
  }
  // Columns 0-31 of two rows of bf16 at once.
  static FX_MEMBER void panel_of_columns(const bf16* row, const bf16* next, F32 (&out)[2]) {
    interleave(_mm512_loadu_si512(row), _mm512_loadu_si512(next), out);
  }
  static FX_MEMBER void panel_of_columns(const positive<bf16>* row, const positive<bf16>* next, F32 (&out)[2]) {
    interleave(relu(_mm512_loadu_si512(row)), relu(_mm512_loadu_si512(next)), out);
  }
  static FX_MEMBER void interleave(__m512i even, __m512i odd, F32 (&out)[2]) {
    alignas(64) static constexpr auto from = [] {
      struct {
        uint16_t lane[64];
      } order{};
      for (int i = 0; i < 32; ++i) {
        order.lane[2 * i] = static_cast<uint16_t>(i);
        order.lane[2 * i + 1] = static_cast<uint16_t>(i + 32);
      }
      return order;
    }();
    FX_UNROLL
    for (int half = 0; half < 2; ++half)
      out[half] = (F32)_mm512_permutex2var_epi16(even, _mm512_load_si512(from.lane + 32 * half), odd);
  }
  // Negative numbers, -inf among them, are those codes; above are NaNs.
  static FX_MEMBER __m512i relu(__m512i values) {
    const __m512i above_sign = _mm512_xor_si512(values, _mm512_set1_epi16(static_cast<int16_t>(0x8000)));
    const __mmask32 kept = _mm512_cmpgt_epu16_mask(above_sign, _mm512_set1_epi16(0x7f80));
    return _mm512_maskz_mov_epi16(kept, values);
  }
  static FX_MEMBER F32 panel_of_k(const float* column) { return load(column); }
  static FX_MEMBER F32 panel_of_k(const float* column, int count) { return load(column, count); }
  static FX_MEMBER F32 panel_of_k(const f16* column) { return load(column); }
  static FX_MEMBER F32 panel_of_k(const f16* column, int count) { return load(column, count); }
  static FX_MEMBER F32 panel_of_k(const bf16* column) { return _mm512_loadu_ps(column); }
  static FX_MEMBER F32 panel_of_k(const bf16* column, int count) {
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(first32(count), column));
  }
  static FX_MEMBER F32 panel_of_k(const rounded* column, int count) {
    const F32 high = load(&column[16].value, static_cast<int>(larger(count - 16, 0)));
    return (F32)_mm512_cvtne2ps_pbh(high, load(&column->value, static_cast<int>(smaller(count, 16))));
  }
  template <class T>
  static FX_MEMBER F32 panel_of_k(const T* column) {
    return panel_of_k(column, 32);
  }
  template <class T>
  static FX_MEMBER F32 panel_of_k(const T* column, int count) {
    __m512bh halves[2];
    decode<T>(_mm512_maskz_loadu_epi8(first32(count), column), halves);
    return (F32)halves[0];
  }
};

}  // namespace

}  // namespace fx
