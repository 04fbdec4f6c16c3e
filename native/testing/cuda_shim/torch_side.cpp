// What stands in for the device and for torch's allocations on it: a CPU that claims to be one, and memory that
// is NaN before use and has fences.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <cstring>
#include <vector>

#include "registration.h"
#include "runtime.h"
#include "tensors.h"

namespace fx {

namespace {

using torch::stable::Tensor;

constexpr int64_t fence_bytes = 64;

struct Fenced {
  Tensor memory;
  int64_t bytes;
};

// Of the calls since the last check_fences().
std::vector<Fenced> fenced;

Tensor on_cpu(int32_t dtype, const int64_t* sizes, const int64_t* strides, int64_t dim) {
  AtenTensorHandle handle = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(dim, sizes, strides, dtype, aoti_torch_device_type_cpu(), 0, &handle));
  return Tensor(handle);
}

// A tensor of `count` elements in the middle of a longer one.
Tensor with_fences(int32_t dtype, int64_t element_bytes, const int64_t* sizes, const int64_t* strides, int64_t dim) {
  int64_t count = 1, stride = 1;
  for (int64_t d = 0; d < dim; ++d) count *= sizes[d];
  const int64_t fence = fence_bytes / element_bytes, all = count + 2 * fence;
  Tensor memory = on_cpu(dtype, &all, &stride, 1);
  auto* bytes = static_cast<char*>(memory.data_ptr());
  std::memset(bytes, 0xa5, static_cast<size_t>(all * element_bytes));
  std::memset(bytes + fence_bytes, 0xff, static_cast<size_t>(count * element_bytes));
  fenced.push_back({memory, count * element_bytes});
  AtenTensorHandle handle = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch__reinterpret_tensor(memory.get(), dim, sizes, strides, fence, &handle));
  return Tensor(handle);
}

bool fence_stands(const char* at) {
  for (int64_t i = 0; i < fence_bytes; ++i)
    if (at[i] != '\xa5') return false;
  return true;
}

// True where nothing was written beyond what was allocated since the last call.
bool check_fences() {
  bool stand = true;
  for (const Fenced& f : fenced) {
    const auto* bytes = static_cast<const char*>(f.memory.data_ptr());
    stand = stand && fence_stands(bytes) && fence_stands(bytes + fence_bytes + f.bytes);
  }
  fenced.clear();
  return stand;
}

STABLE_TORCH_LIBRARY_FRAGMENT(fxrewrite_shim, m) {
  m.def("_check_fences() -> bool");
  m.impl("_check_fences", TORCH_BOX(&check_fences));
  m.def(
      "relu_linear_attention(Tensor query, Tensor key, Tensor value, Tensor? norm_query=None, Tensor? norm_key=None, "
      "Tensor? cos=None, Tensor? sin=None, *, float eps, float? floor=None, bool relu=True, ScalarType? "
      "out_dtype=None, "
      "bool channel_major=False) -> Tensor");
  m.def("fp8_linear(Tensor x, Tensor weight, Tensor? scale=None, Tensor? bias=None, int[]? block=None) -> Tensor");
}

}  // namespace

int32_t common_device(std::initializer_list<const Tensor*>) { return 0; }

Tensor new_tensor(const Tensor&, Dtype dtype, const int64_t* sizes, const int64_t* strides, int64_t dim) {
  const bool narrow = dtype == Dtype::bfloat16;
  return with_fences(narrow ? aoti_torch_dtype_bfloat16() : aoti_torch_dtype_float32(), narrow ? 2 : 4, sizes, strides,
                     dim);
}

Tensor new_workspace(const Tensor&, int64_t bytes) {
  const int64_t stride = 1;
  return with_fences(aoti_torch_dtype_uint8(), 1, &bytes, &stride, 1);
}

// Two multiprocessors, so that small inputs are cut into several blocks.
const DeviceProperties& device_properties(int32_t) {
  static const DeviceProperties properties{80, 2, 163 << 10};
  return properties;
}

OnDevice::OnDevice(int32_t) : before(0) {}
OnDevice::~OnDevice() {}

Stream current_stream(int32_t) { return nullptr; }

}  // namespace fx
