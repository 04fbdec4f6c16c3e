// torch's thread pool as a `Parallel`, for op wrappers.
#pragma once

#include <torch/csrc/stable/ops.h>

#include "parallel.h"

namespace fx {

inline Parallel torch_pool() {
  return {[](int64_t begin, int64_t end, int64_t grain, Parallel::Body body, void* context) {
            STABLE_TORCH_ERROR_CODE_CHECK(torch_parallel_for(begin, end, grain, body, context));
          },
          static_cast<int>(torch::stable::get_num_threads())};
}

}  // namespace fx
