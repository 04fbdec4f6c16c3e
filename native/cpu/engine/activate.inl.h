// Activations of a vector of floats. Special values as PyTorch has them: NaN stays, and what multiplies
// by a factor that vanishes at -inf gives NaN there.
#pragma once

#include "../activation.h"
#include "base.h"

namespace fx {

// x / (1 + exp(-z)): x·sigmoid(z)
template <class Isa>
FX_INLINE typename Isa::F32 times_sigmoid(typename Isa::F32 x, typename Isa::F32 z) {
  return x / (Isa::exp(Isa::zero() - z) + 1.0f);
}

// Φ(x) for |x| < 1: its series about 0 to x^15, whose next term is below 2.4e-9.
template <class Isa>
FX_INLINE typename Isa::F32 normal_near_zero(typename Isa::F32 x) {
  const typename Isa::F32 u = x * x;
  typename Isa::F32 r = Isa::splat(-0x1.62226ap-25f);
  r = Isa::fma(r, u, Isa::splat(0x1.658a22p-21f));
  r = Isa::fma(r, u, Isa::splat(-0x1.3ce8fap-17f));
  r = Isa::fma(r, u, Isa::splat(0x1.e42b0ep-14f));
  r = Isa::fma(r, u, Isa::splat(-0x1.37404p-10f));
  r = Isa::fma(r, u, Isa::splat(0x1.46d042p-7f));
  r = Isa::fma(r, u, Isa::splat(-0x1.105838p-4f));
  r = Isa::fma(r, u, Isa::splat(0x1.988454p-2f));
  return Isa::fma(r, x, Isa::splat(0.5f));
}

// x·Φ(x). For z >= 0, Φ(-z) = exp(-z²/2)·t·P(t) with t = 1 / (1 + 0.2625·z), P fitted to a relative error of
// 1.5e-9 / sqrt(2·Φ(-z)); so the small values of negative x are precise too, unlike those of 1 + erf.
template <class Isa>
FX_INLINE typename Isa::F32 gelu(typename Isa::F32 x) {
  using F32 = typename Isa::F32;
  const F32 z = Isa::max(x, Isa::zero() - x), t = 1.0f / Isa::fma(z, Isa::splat(0.2625f), Isa::splat(1.0f));
  F32 p = Isa::splat(0x1.d35d12p-6f);
  p = Isa::fma(p, t, Isa::splat(-0x1.17ab2ap-3f));
  p = Isa::fma(p, t, Isa::splat(0x1.a5fa56p-3f));
  p = Isa::fma(p, t, Isa::splat(-0x1.8a3210p-4f));
  p = Isa::fma(p, t, Isa::splat(0x1.ecc652p-4f));
  p = Isa::fma(p, t, Isa::splat(0x1.1c826cp-4f));
  p = Isa::fma(p, t, Isa::splat(0x1.95c17ep-4f));
  p = Isa::fma(p, t, Isa::splat(0x1.acc21ap-4f));
  p = Isa::fma(p, t, Isa::splat(0x1.acf020p-4f));
  const F32 tail = p * t * Isa::exp(z * z * -0.5f);
  const F32 far = Isa::select(x < Isa::zero(), tail, 1.0f - tail);
  return x * Isa::select(z < Isa::splat(1.0f), normal_near_zero<Isa>(x), far);
}

template <class Isa>
FX_INLINE typename Isa::F32 activate(Activation activation, typename Isa::F32 x) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::relu:
      return Isa::select(x < Isa::zero(), Isa::zero(), x);
    case Activation::gelu:
      return gelu<Isa>(x);
    case Activation::gelu_tanh: {
      // (1 + tanh(u)) / 2 is sigmoid(2·u)
      constexpr float twice_sqrt_2_over_pi = 1.5957691216057308f;
      return times_sigmoid<Isa>(x, x * Isa::fma(x * x, Isa::splat(0.044715f), Isa::splat(1.0f)) * twice_sqrt_2_over_pi);
    }
    case Activation::silu:
      return times_sigmoid<Isa>(x, x);
    case Activation::quick_gelu:
      return times_sigmoid<Isa>(x, x * 1.702f);
  }
  return x;
}

}  // namespace fx
