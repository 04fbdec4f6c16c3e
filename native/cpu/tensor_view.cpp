#include "tensor_view.h"

#include <vector>

namespace fx {

namespace {

Dtype dtype_of(AtenTensorHandle tensor) {
  // libtorch's own codes are looked up once: the stable ABI promises the functions, not the numbers.
  static const int32_t codes[] = {
      aoti_torch_dtype_float64(),         aoti_torch_dtype_float32(),         aoti_torch_dtype_float16(),
      aoti_torch_dtype_bfloat16(),        aoti_torch_dtype_float8_e4m3fn(),   aoti_torch_dtype_float8_e5m2(),
      aoti_torch_dtype_float8_e4m3fnuz(), aoti_torch_dtype_float8_e5m2fnuz(), aoti_torch_dtype_bool(),
  };
  int32_t code = -1;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor, &code));
  uint8_t index = 0;
  while (index < static_cast<uint8_t>(Dtype::other) && codes[index] != code) ++index;
  return static_cast<Dtype>(index);
}

}  // namespace

TensorView view(const torch::stable::Tensor& tensor) {
  AtenTensorHandle handle = tensor.get();
  int64_t* sizes = nullptr;
  int64_t* strides = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(handle, &sizes));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(handle, &strides));
  return {tensor.data_ptr(), sizes, strides, tensor.dim(), dtype_of(handle)};
}

static torch::stable::Tensor empty_of_code(int32_t dtype, const int64_t* sizes, const int64_t* strides, int64_t dim) {
  AtenTensorHandle handle = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(dim, sizes, strides, dtype, aoti_torch_device_type_cpu(), 0, &handle));
  return torch::stable::Tensor(handle);
}

torch::stable::Tensor empty_strided(const torch::stable::Tensor& like, const int64_t* sizes, const int64_t* strides,
                                    int64_t dim) {
  int32_t dtype = 0;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(like.get(), &dtype));
  return empty_of_code(dtype, sizes, strides, dim);
}

torch::stable::Tensor empty_strided(Dtype dtype, const int64_t* sizes, const int64_t* strides, int64_t dim) {
  return empty_of_code(dtype == Dtype::bfloat16 ? aoti_torch_dtype_bfloat16() : aoti_torch_dtype_float32(), sizes,
                       strides, dim);
}

torch::stable::Tensor empty_like_dtype(const torch::stable::Tensor& like, const int64_t* sizes, int64_t dim) {
  std::vector<int64_t> strides(static_cast<size_t>(dim));
  int64_t stride = 1;
  for (int64_t d = dim - 1; d >= 0; --d) {
    strides[static_cast<size_t>(d)] = stride;
    stride *= sizes[d] > 1 ? sizes[d] : 1;
  }
  return empty_strided(like, sizes, strides.data(), dim);
}

}  // namespace fx
