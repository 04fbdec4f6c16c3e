// The `sdpa` kernel: chooses the way over the keys.
#pragma once

#include "sdpa_blocks.inl.h"
#include "sdpa_stream.inl.h"

namespace fx {

template <class Isa, class T, class S>
static const char* sdpa_of(const SdpaArgs& args, const Parallel& pool) {
  if (SdpaStream<Isa, T, S>::takes(args)) {
    SdpaStream<Isa, T, S>(args).run(pool);
    return "stream";
  }
  SdpaBlocks<Isa, T, S>(args).run(pool);
  return "blocks";
}

template <class Isa>
static const char* sdpa_kernel(const SdpaArgs& args, const Parallel& pool) {
  if (args.dtype == Dtype::bfloat16) return sdpa_of<Isa, bf16, bf16>(args, pool);
  if (args.dtype == Dtype::float16) return sdpa_of<Isa, float, f16>(args, pool);
  return sdpa_of<Isa, float, float>(args, pool);
}

}  // namespace fx
