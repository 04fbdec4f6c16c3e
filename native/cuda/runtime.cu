#include <dlfcn.h>

#include <array>
#include <mutex>

#include "runtime.h"

namespace fx {

namespace {

constexpr int most_devices = 64;

DeviceProperties look_up(int32_t device) {
  int major = 0, minor = 0, multiprocessors = 0, shared_bytes = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "properties of a device");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "properties of a device");
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "properties of a device");
  check(cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
        "properties of a device");
  return {10 * major + minor, multiprocessors, shared_bytes};
}

// torch's own library is loaded before this one, and a torch without CUDA has none: so no link, a look.
using GetStream = int32_t (*)(int32_t device, void** stream);

GetStream find_get_stream() {
  void* torch = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  void* found = torch != nullptr ? dlsym(torch, "aoti_torch_get_current_cuda_stream") : nullptr;
  if (found == nullptr)
    throw std::runtime_error("fxrewrite: this torch has no CUDA streams: libtorch_cuda.so is not loaded");
  return reinterpret_cast<GetStream>(found);
}

}  // namespace

const DeviceProperties& device_properties(int32_t device) {
  static std::array<DeviceProperties, most_devices> known{};
  static std::array<std::once_flag, most_devices> once;
  const auto index = static_cast<size_t>(device);
  std::call_once(once.at(index), [&] { known[index] = look_up(device); });
  return known[index];
}

OnDevice::OnDevice(int32_t device) : before(0) {
  check(cudaGetDevice(&before), "the current device");
  check(cudaSetDevice(device), "the current device");
}

OnDevice::~OnDevice() { cudaSetDevice(before); }

Stream current_stream(int32_t device) {
  static const GetStream get = find_get_stream();
  void* stream = nullptr;
  if (get(device, &stream) != 0) throw std::runtime_error("fxrewrite: torch gave no stream for the device");
  return stream;
}

}  // namespace fx
