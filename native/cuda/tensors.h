// What op wrappers need of torch's tensors beyond their view: where they are, and new ones.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "tensor_view.h"

namespace fx {

// The index of the device that all of these tensors are on, or -1 where they are on several, or on another kind.
// Null pointers stand for arguments that were not given.
int32_t common_device(std::initializer_list<const torch::stable::Tensor*> tensors);

// An uninitialised tensor on the device of `like`, of a dtype (bfloat16 or float32).
torch::stable::Tensor new_tensor(const torch::stable::Tensor& like, Dtype dtype, const int64_t* sizes,
                                 const int64_t* strides, int64_t dim);

// Uninitialised memory on the device of `like`, aligned to 16 bytes.
torch::stable::Tensor new_workspace(const torch::stable::Tensor& like, int64_t bytes);

// The strides of a row-major tensor.
inline void row_major(std::vector<int64_t>& strides, const std::vector<int64_t>& sizes) {
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= sizes[d] > 1 ? sizes[d] : 1;
  }
}

}  // namespace fx
