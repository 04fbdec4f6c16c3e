#include "tensors.h"

namespace fx {

namespace {

using torch::stable::Tensor;

int32_t device_type_of(const Tensor& tensor) {
  int32_t type = 0;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor.get(), &type));
  return type;
}

int32_t device_index_of(const Tensor& tensor) {
  int32_t index = 0;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(tensor.get(), &index));
  return index;
}

Tensor empty(const Tensor& like, int32_t dtype, const int64_t* sizes, const int64_t* strides, int64_t dim) {
  AtenTensorHandle handle = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(dim, sizes, strides, dtype, device_type_of(like), device_index_of(like), &handle));
  return Tensor(handle);
}

}  // namespace

int32_t common_device(std::initializer_list<const Tensor*> tensors) {
  int32_t device = -1;
  for (const Tensor* tensor : tensors) {
    if (tensor == nullptr) continue;
    if (device_type_of(*tensor) != aoti_torch_device_type_cuda()) return -1;
    const int32_t index = device_index_of(*tensor);
    if (device != -1 && index != device) return -1;
    device = index;
  }
  return device;
}

Tensor new_tensor(const Tensor& like, Dtype dtype, const int64_t* sizes, const int64_t* strides, int64_t dim) {
  return empty(like, dtype == Dtype::bfloat16 ? aoti_torch_dtype_bfloat16() : aoti_torch_dtype_float32(), sizes,
               strides, dim);
}

Tensor new_workspace(const Tensor& like, int64_t bytes) {
  const int64_t stride = 1;
  return empty(like, aoti_torch_dtype_uint8(), &bytes, &stride, 1);
}

}  // namespace fx
