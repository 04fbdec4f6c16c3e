// One row of attention scores: mask, running maximum, exponentials. The online softmax of Milakov and
// Gimelshein (2018), as in FlashAttention (Dao et al., 2022), over one block of keys at a time.
#pragma once

#include "../engine/base.h"
#include "sdpa.h"

namespace fx {

// What a mask does to a score. `gathered` masks have no unit stride or a rarer dtype: their row is
// copied to contiguous float or byte first.
enum class MaskForm : int { none, lower, replace, add_float, add_bf16 };

// exp((score - max) · unit) are the probabilities of a row, up to their sum.
struct SoftmaxState {
  float max, sum;
};

template <class Isa>
struct SoftmaxRow {
  using F32 = typename Isa::F32;
  static constexpr int lanes = Isa::lanes;

  float scale;  // scores · scale is what the mask applies to
  float fill;
  float unit;   // from the stored scores to exponents
  bool scaled;  // the stored scores are scaled already

  explicit SoftmaxRow(const SdpaArgs& args) {
    // Without a mask the scale goes into the exponent. One that is not positive would turn the maximum into
    // the minimum, and an extreme one would leave the range of float.
    scaled = args.mask != nullptr || !(args.scale > 0x1p-100f && args.scale < 0x1p100f);
    scale = args.scale;
    fill = args.fill;
    unit = scaled ? 1.0f : args.scale;
  }

  template <MaskForm form>
  FX_MEMBER F32 masked(F32 score, const void* mask, int64_t at, int count) const {
    const F32 value = score * Isa::splat(scale);
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
    } else {
      return value;
    }
  }

  // Scales and masks scores[0, count) in place; returns their maximum. The rest of the last vector is -inf.
  template <MaskForm form>
  float apply(float* scores, const void* mask, int64_t count) const {
    F32 best = lowest();
    int64_t j = 0;
    for (; j + lanes <= count; j += lanes) {
      const F32 value = masked<form>(Isa::load(scores + j), mask, j, lanes);
      Isa::store(scores + j, value);
      best = Isa::max(best, value);
    }
    if (j < count) {
      const int rest = static_cast<int>(count - j);
      Isa::store(scores + j, masked<form>(Isa::load(scores + j), mask, j, rest), rest);
      best = Isa::max(best, Isa::load(scores + j));
    }
    return Isa::maximum(best);
  }

  static float maximum(const float* scores, int64_t whole) {
    F32 best[4] = {lowest(), lowest(), lowest(), lowest()};
    int64_t j = 0;
    for (; j + 4 * lanes <= whole; j += 4 * lanes) FX_UNROLL
    for (int i = 0; i < 4; ++i) best[i] = Isa::max(best[i], Isa::load(scores + j + i * lanes));
    for (; j < whole; j += lanes) best[0] = Isa::max(best[0], Isa::load(scores + j));
    return Isa::maximum(Isa::max(Isa::max(best[0], best[1]), Isa::max(best[2], best[3])));
  }

  float prepare(MaskForm form, float* scores, const void* mask, int64_t count) const {
    if (!scaled) return maximum(scores, round_up(count, lanes));
    switch (form) {
      case MaskForm::lower:
        return apply<MaskForm::lower>(scores, mask, count);
      case MaskForm::replace:
        return apply<MaskForm::replace>(scores, mask, count);
      case MaskForm::add_float:
        return apply<MaskForm::add_float>(scores, mask, count);
      case MaskForm::add_bf16:
        return apply<MaskForm::add_bf16>(scores, mask, count);
      case MaskForm::none:
        break;
    }
    return apply<MaskForm::none>(scores, mask, count);
  }

  // exp(x · unit) to the precision of T. Powers of two are cheaper; those of e lose nothing in the scaling.
  template <class T>
  static FX_MEMBER F32 power(F32 x, F32 unit) {
    if constexpr (sizeof(T) == sizeof(bf16))
      return Isa::exp2(x * unit);
    else
      return Isa::exp(x * unit);
  }

  // Turns scores[0, count) into probabilities relative to the running maximum, as T, in the same memory
  // (T is not wider than float: the writes stay behind the reads), with zeros up to `padded`, a multiple of
  // the vector. With Split the part of each that T drops goes to `low`. Returns the factor by which what was
  // summed before has to shrink.
  template <class T, bool Split = false>
  float run(MaskForm form, float* scores, const void* mask, int64_t count, int64_t padded, SoftmaxState& state,
            T* low = nullptr) const {
    T* out = reinterpret_cast<T*>(scores);
    if (count <= 0) {
      clear(out, 0, padded);
      if (Split) clear(low, 0, padded);
      return 1.0f;
    }
    const int64_t whole = round_up(count, lanes);
    for (int64_t j = count; j < whole; ++j) scores[j] = -__builtin_inff();

    const float best = prepare(form, scores, mask, count);
    const float max = state.max > best ? state.max : best;
    // While a row has nothing but -inf, any finite maximum gives it zeros.
    const float base = max == -__builtin_inff() ? 0.0f : max;
    const F32 shift = Isa::splat(base), units = Isa::splat(sizeof(T) == sizeof(bf16) ? unit * log2_e : unit);
    const auto weigh = [&](int64_t j) {
      const F32 p = power<T>(Isa::load(scores + j) - shift, units);
      Isa::store(out + j, p);
      if constexpr (Split) Isa::store(low + j, p - Isa::load(out + j));
      return p;
    };
    F32 sums[2] = {Isa::zero(), Isa::zero()};
    int64_t j = 0;
    for (; j + 2 * lanes <= whole; j += 2 * lanes) {
      sums[0] += weigh(j);
      sums[1] += weigh(j + lanes);
    }
    if (j < whole) sums[0] += weigh(j);
    clear(out, whole, padded);
    if (Split) clear(low, whole, padded);

    float factor = 1.0f;
    if (max != state.max) {
      factor = power<float>(Isa::splat(state.max - base), Isa::splat(unit))[0];
      state.max = max;
    }
    state.sum = state.sum * factor + Isa::sum(sums[0] + sums[1]);
    return factor;
  }

 private:
  static constexpr float log2_e = 0x1.715476p0f;

  static FX_MEMBER F32 lowest() { return Isa::splat(-__builtin_inff()); }

  template <class T>
  static FX_MEMBER void clear(T* out, int64_t from, int64_t to) {
    for (int64_t j = from; j < to; j += lanes) Isa::store(out + j, Isa::zero());
  }
};

// What the summed values are divided by in the end.
FX_INLINE float softmax_divisor(const SoftmaxState& state, bool safe) {
  if (state.sum == 0) return safe ? __builtin_inff() : __builtin_nanf("");
  return state.sum;
}

}  // namespace fx
