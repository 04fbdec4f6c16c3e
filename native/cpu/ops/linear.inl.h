// `linear` for one ISA.
#pragma once

#include "linear.h"
#include "linear_driver.inl.h"
#include "linear_rounded.inl.h"

namespace fx {

template <class T>
FX_INLINE RowOperand<T> row_operand(const RowOperandArgs& args) {
  return {static_cast<const T*>(args.data), args.group, args.group_stride, args.row_stride};
}

// T are the elements of x and of the weight as products take them, Y those of the rest.
template <class T, class Y = T>
FX_INLINE LinearProblem<T, T, Y> linear_problem(const LinearArgs& args) {
  return {
      static_cast<const T*>(args.x),
      static_cast<const T*>(args.weight),
      static_cast<const Y*>(args.bias),
      nullptr,
      0,
      static_cast<Y*>(args.out),
      args.m,
      args.n,
      args.k,
      args.x_stride,
      args.weight_stride_n,
      args.weight_stride_k,
      args.activation,
      row_operand<Y>(args.multiply),
      row_operand<Y>(args.residual),
  };
}

template <class Isa, class T>
static const char* linear_of(const LinearArgs& args, const Parallel& pool) {
  return run_linear<Isa>(linear_problem<T>(args), pool);
}

// Few rows of x read the weight at memory's speed in float32: rounding it would gain nothing.
template <class Isa>
FX_INLINE bool rounds_operands(const LinearArgs& args) {
  return args.bf16_operands && args.dtype == Dtype::float32 && args.n > 0 &&
         args.m > most_dot_rows<Isa, float, float>(args.k);
}

template <class Isa>
static const char* linear_of_rounded(const LinearArgs& args, const Parallel& pool) {
  linear_by_panels<Isa>(RoundedProblem{linear_problem<rounded, float>(args)}, pool);
  return "panel_bf16";
}

template <class Isa>
static const char* linear_kernel(const LinearArgs& args, const Parallel& pool) {
  if constexpr (Isa::template k_step<bf16> == 2) {
    if (rounds_operands<Isa>(args)) return linear_of_rounded<Isa>(args, pool);
  }
  switch (args.dtype) {
    case Dtype::bfloat16:
      return linear_of<Isa, bf16>(args, pool);
    case Dtype::float16:
      return linear_of<Isa, f16>(args, pool);
    default:
      return linear_of<Isa, float>(args, pool);
  }
}

}  // namespace fx
