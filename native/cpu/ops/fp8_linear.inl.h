// `fp8_linear` for one ISA.
#pragma once

#include "fp8_linear.h"
#include "linear_driver.inl.h"

namespace fx {

template <class Isa, class W>
static const char* fp8_linear_of(const Fp8LinearArgs& args, const Parallel& pool) {
  const LinearProblem<bf16, W> problem{
      static_cast<const bf16*>(args.x),
      static_cast<const W*>(args.weight),
      static_cast<const bf16*>(args.bias),
      args.scale,
      args.scale_stride,
      static_cast<bf16*>(args.out),
      args.m,
      args.n,
      args.k,
      args.x_stride,
      args.weight_stride_n,
      args.weight_stride_k,
  };
  return run_linear<Isa>(problem, pool);
}

template <class Isa>
static const char* fp8_linear_kernel(const Fp8LinearArgs& args, const Parallel& pool) {
  return args.weight_dtype == Dtype::float8_e4m3fn ? fp8_linear_of<Isa, e4m3>(args, pool)
                                                   : fp8_linear_of<Isa, e5m2>(args, pool);
}

}  // namespace fx
