// torch's thread pool, as kernels see it: a plain callback, so that they include nothing of torch.
#pragma once

#include <cstdint>

namespace fx {

struct Parallel {
  using Body = void (*)(int64_t begin, int64_t end, void* context);
  // Splits [begin, end) over the pool in pieces of at least `grain`; returns when all are done.
  void (*run)(int64_t begin, int64_t end, int64_t grain, Body body, void* context);
  int threads;
};

// static: each ISA file must keep its own copy (see engine/base.h).
template <class F>
static inline void parallel_for(const Parallel& pool, int64_t count, int64_t grain, F&& f) {
  if (count <= grain || pool.threads == 1) {
    if (count > 0) f(int64_t{0}, count);
    return;
  }
  pool.run(
      0, count, grain, [](int64_t begin, int64_t end, void* context) { (*static_cast<F*>(context))(begin, end); }, &f);
}

}  // namespace fx
