// A strided CPU tensor as plain data: what op wrappers inspect, without a call into libtorch per look.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>

#include "dtype.h"

namespace fx {

struct TensorView {
  void* data;
  const int64_t* sizes;
  const int64_t* strides;  // in elements
  int64_t dim;
  Dtype dtype;

  int64_t size(int64_t d) const { return sizes[d < 0 ? dim + d : d]; }
  int64_t stride(int64_t d) const { return strides[d < 0 ? dim + d : d]; }
  int64_t numel() const {
    int64_t count = 1;
    for (int64_t d = 0; d < dim; ++d) count *= sizes[d];
    return count;
  }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// The view borrows the tensor's sizes and strides: it must not outlive `tensor`.
TensorView view(const torch::stable::Tensor& tensor);

// An uninitialised row-major CPU tensor. `like` gives its dtype.
torch::stable::Tensor empty_like_dtype(const torch::stable::Tensor& like, const int64_t* sizes, int64_t dim);

// The same with any strides.
torch::stable::Tensor empty_strided(const torch::stable::Tensor& like, const int64_t* sizes, const int64_t* strides,
                                    int64_t dim);

// The same of a dtype (bfloat16 or float32).
torch::stable::Tensor empty_strided(Dtype dtype, const int64_t* sizes, const int64_t* strides, int64_t dim);

}  // namespace fx
