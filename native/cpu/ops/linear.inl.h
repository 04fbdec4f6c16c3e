// `linear` for one ISA.
#pragma once

#include "linear.h"
#include "linear_driver.inl.h"

namespace fx {

template <class T>
FX_INLINE RowOperand<T> row_operand(const RowOperandArgs& args) {
  return {static_cast<const T*>(args.data), args.group, args.group_stride, args.row_stride};
}

template <class Isa, class T>
static const char* linear_of(const LinearArgs& args, const Parallel& pool) {
  const LinearProblem<T, T> problem{
      static_cast<const T*>(args.x),
      static_cast<const T*>(args.weight),
      static_cast<const T*>(args.bias),
      nullptr,
      0,
      static_cast<T*>(args.out),
      args.m,
      args.n,
      args.k,
      args.x_stride,
      args.weight_stride_n,
      args.weight_stride_k,
      args.activation,
      row_operand<T>(args.multiply),
      row_operand<T>(args.residual),
  };
  return run_linear<Isa>(problem, pool);
}

template <class Isa>
static const char* linear_kernel(const LinearArgs& args, const Parallel& pool) {
  return args.dtype == Dtype::bfloat16 ? linear_of<Isa, bf16>(args, pool) : linear_of<Isa, float>(args, pool);
}

}  // namespace fx
