// One row of attention scores: mask, running maximum, exponentials. The online softmax of Milakov and
// Gimelshein (2018), as in FlashAttention (Dao et al., 2022), over one block of keys at a time.
#pragma once

#include "../engine/base.h"
#include "sdpa.h"

namespace fx {

// What a mask does to a score; or it has done it already, with the scaling.
enum class MaskForm : int { none, lower, replace, add_float, add_bf16, add_f16, applied };

template <class Isa>
struct SoftmaxRow {
  using F32 = typename Isa::F32;
  static constexpr int lanes = Isa::lanes;

  float scale;  // scores · scale is what the mask applies to
  float cap;    // once capped, where it is not 0
  float fill;
  float unit;   // from the stored scores to exponents
  bool scaled;  // the stored scores are scaled already
  bool safe;    // a row without any score gives zeros, not NaN

  explicit SoftmaxRow(const SdpaArgs& args) {
    // Without a mask the scale goes into the exponent. One that is not positive would turn the maximum into
    // the minimum, and an extreme one would leave the range of float.
    scaled = args.mask != nullptr || args.softcap != 0 || !(args.scale > 0x1p-100f && args.scale < 0x1p100f);
    scale = args.scale;
    cap = args.softcap;
    fill = args.fill;
    safe = args.safe;
    unit = scaled ? 1.0f : args.scale;
  }

  // Scores of `count` keys, scaled, capped and masked by mask[at, at + count).
  template <MaskForm form, bool capped>
  FX_MEMBER F32 masked(F32 score, const void* mask, int64_t at, int count) const {
    F32 value = score * Isa::splat(scale);
    if constexpr (capped) value = tanh(value / Isa::splat(cap)) * Isa::splat(cap);
    if constexpr (form == MaskForm::lower) {
      const auto on = Isa::nonzero(static_cast<const uint8_t*>(mask) + at, count);
      return value + Isa::select(on, Isa::zero(), Isa::splat(-__builtin_inff()));
    } else if constexpr (form == MaskForm::replace) {
      const auto on = Isa::nonzero(static_cast<const uint8_t*>(mask) + at, count);
      return Isa::select(on, value, Isa::splat(fill));
    } else if constexpr (form == MaskForm::add_float) {
      return value + Isa::load(static_cast<const float*>(mask) + at, count);
    } else if constexpr (form == MaskForm::add_bf16) {
      return value + Isa::load(static_cast<const bf16*>(mask) + at, count);
    } else if constexpr (form == MaskForm::add_f16) {
      return value + Isa::load(static_cast<const f16*>(mask) + at, count);
    } else {
      return value;
    }
  }

  // Scales, caps and masks scores[begin, end) in place; returns their maximum. The rest of the last vector is
  // -inf.
  template <MaskForm form, bool capped>
  float apply(float* scores, const void* mask, int64_t begin, int64_t end) const {
    F32 best = lowest();
    int64_t j = begin;
    for (; j + lanes <= end; j += lanes) {
      const F32 value = masked<form, capped>(Isa::load(scores + j), mask, j, lanes);
      Isa::store(scores + j, value);
      best = Isa::max(best, value);
    }
    if (j < end) {
      const int rest = static_cast<int>(end - j);
      const F32 value = Isa::first(rest, masked<form, capped>(Isa::load(scores + j), mask, j, rest), lowest());
      Isa::store(scores + j, value);
      best = Isa::max(best, value);
    }
    return Isa::maximum(best);
  }

  static float maximum(const float* scores, int64_t begin, int64_t end) {
    F32 best[4] = {lowest(), lowest(), lowest(), lowest()};
    int64_t j = begin;
    for (; j + 4 * lanes <= end; j += 4 * lanes) FX_UNROLL
    for (int i = 0; i < 4; ++i) best[i] = Isa::max(best[i], Isa::load(scores + j + i * lanes));
    for (; j < end; j += lanes) best[0] = Isa::max(best[0], Isa::load(scores + j));
    return Isa::maximum(Isa::max(Isa::max(best[0], best[1]), Isa::max(best[2], best[3])));
  }

  template <bool capped>
  float prepare(MaskForm form, float* scores, const void* mask, int64_t begin, int64_t end) const {
    switch (form) {
      case MaskForm::lower:
        return apply<MaskForm::lower, capped>(scores, mask, begin, end);
      case MaskForm::replace:
        return apply<MaskForm::replace, capped>(scores, mask, begin, end);
      case MaskForm::add_float:
        return apply<MaskForm::add_float, capped>(scores, mask, begin, end);
      case MaskForm::add_bf16:
        return apply<MaskForm::add_bf16, capped>(scores, mask, begin, end);
      case MaskForm::add_f16:
        return apply<MaskForm::add_f16, capped>(scores, mask, begin, end);
      case MaskForm::none:
      case MaskForm::applied:
        break;
    }
    return apply<MaskForm::none, capped>(scores, mask, begin, end);
  }

  float prepare(MaskForm form, float* scores, const void* mask, int64_t begin, int64_t end, const float* best) const {
    if (!scaled || form == MaskForm::applied)
      return best != nullptr ? Isa::maximum(Isa::load(best)) : maximum(scores, begin, end);
    return cap == 0 ? prepare<false>(form, scores, mask, begin, end) : prepare<true>(form, scores, mask, begin, end);
  }

  // From e^2x - 1, which is exact to the last bits where x is small.
  static FX_MEMBER F32 tanh(F32 x) {
    const F32 grown = Isa::expm1(x + x);
    return grown / (grown + 2.0f);
  }

  // Turns scores[begin, end) into probabilities exp((score - max) · unit) relative to the running maximum, as
  // T, in the same memory (T is not wider than float: the writes stay behind the reads), with zeros before and,
  // up to `padded`, after them. With Split the part of each that T drops goes to `low`: it is positive where the
  // probability is, for a zero or negative one times an infinite value would be NaN in their sum. Up to a vector
  // beyond `padded` may be written. `best` holds their maximum in `lanes` parts where it is known, or is null.
  // `max` and `sums` are the row's running maximum and the sums, in `lanes` parts, of all probabilities so far.
  // Returns the factor by which what was summed before has to shrink.
  template <class T, bool Split = false>
  float run(MaskForm form, float* scores, const void* mask, int64_t begin, int64_t end, int64_t padded,
            const float* best, float& max, float* sums, T* low = nullptr) const {
    T* out = reinterpret_cast<T*>(scores);
    if (begin >= end) {
      clear(out, 0, padded);
      if (Split) clear(low, 0, padded);
      return 1.0f;
    }
    const int64_t whole = begin + round_up(end - begin, lanes);
    if (end < whole) {  // beyond a row's end there are no scores
      float* last = scores + whole - lanes;
      Isa::store(last, Isa::first(static_cast<int>(scores + end - last), Isa::load(last), lowest()));
    }

    const float here = prepare(form, scores, mask, begin, end, best);
    const float top = max > here ? max : here, base = shift_of(top);
    const F32 shift = Isa::splat(base), units = Isa::splat(is_narrow<T> ? unit * log2_e : unit);
    const auto high = [](F32 p) { return Split ? p * Isa::splat(1 - 0x1p-8f) : p; };
    F32 one = Isa::zero(), two = Isa::zero();
    int64_t j = begin;
    for (; j + 2 * lanes <= whole; j += 2 * lanes) {
      const F32 p = power<T>((Isa::load(scores + j) - shift) * units);
      const F32 q = power<T>((Isa::load(scores + j + lanes) - shift) * units);
      one += p, two += q;
      Isa::store_two(out + j, high(p), high(q));
      if constexpr (Split) Isa::store_two(low + j, p - Isa::load(out + j), q - Isa::load(out + j + lanes));
    }
    if (j < whole) {
      const F32 p = power<T>((Isa::load(scores + j) - shift) * units);
      one += p;
      Isa::store(out + j, high(p));
      if constexpr (Split) Isa::store(low + j, p - Isa::load(out + j));
    }
    for (int64_t i = 0; i < begin; ++i) out[i] = T{};
    clear(out, whole, padded);
    if constexpr (Split) {
      for (int64_t i = 0; i < begin; ++i) low[i] = T{};
      clear(low, whole, padded);
    }

    if (top == max) {
      Isa::store(sums, Isa::load(sums) + (one + two));
      return 1.0f;
    }
    const F32 factor = Isa::exp(Isa::splat((max - base) * unit));
    max = top;
    Isa::store(sums, Isa::fma(Isa::load(sums), factor, one + two));
    return factor[0];
  }

  // exp(x), or 2^x to the precision of bf16: powers of two are cheaper; those of e lose nothing in the scaling.
  template <class T>
  static FX_MEMBER F32 power(F32 x) {
    if constexpr (is_narrow<T>)
      return Isa::exp2(x);
    else
      return Isa::exp(x);
  }

  // What the summed values are divided by in the end; `sink` is the head's, or null.
  float divisor(float max, float total, const float* sink) const {
    if (sink != nullptr) {
      if (*sink == __builtin_inff()) return __builtin_nanf("");
      total += Isa::exp(Isa::splat(*sink - shift_of(max) * unit))[0];
      if (total == 0 && *sink != -__builtin_inff()) return __builtin_inff();
    }
    if (total == 0) return safe ? __builtin_inff() : __builtin_nanf("");
    return total;
  }

 private:
  template <class T>
  static constexpr bool is_narrow = sizeof(T) < sizeof(float);
  static constexpr float log2_e = 0x1.715476p0f;

  // While a row has nothing but -inf, any finite maximum gives it zeros.
  static FX_MEMBER float shift_of(float max) { return max == -__builtin_inff() ? 0.0f : max; }

  static FX_MEMBER F32 lowest() { return Isa::splat(-__builtin_inff()); }

  template <class T>
  static FX_MEMBER void clear(T* out, int64_t from, int64_t to) {
    for (int64_t j = from; j < to; j += lanes) Isa::store(out + j, Isa::zero());
  }
};

}  // namespace fx
