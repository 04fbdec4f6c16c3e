// The `sdpa` kernel: chooses the way over the keys.
#pragma once

#include "sdpa_blocks.inl.h"
#include "sdpa_stream.inl.h"

namespace fx {

template <class Isa, class T>
static const char* sdpa_of(const SdpaArgs& args, const Parallel& pool) {
  if (SdpaStream<Isa, T>::takes(args)) {
    SdpaStream<Isa, T>(args).run(pool);
    return "stream";
  }
  SdpaBlocks<Isa, T>(args).run(pool);
  return "blocks";
}

template <class Isa>
static const char* sdpa_kernel(const SdpaArgs& args, const Parallel& pool) {
  return args.dtype == Dtype::bfloat16 ? sdpa_of<Isa, bf16>(args, pool) : sdpa_of<Isa, float>(args, pool);
}

}  // namespace fx
