// The device that a call runs on.
#pragma once

#include "device.h"

namespace fx {

struct DeviceProperties {
  int capability;  // 80, 90, ...
  int multiprocessors;
  int shared_bytes;  // that a block may ask for
};

// What the kernels are compiled for, at least.
constexpr int least_capability = 80;

// Looked up once for each device.
const DeviceProperties& device_properties(int32_t device);

// Makes a device the current one, for as long as this lives.
class OnDevice {
 public:
  explicit OnDevice(int32_t device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before;
};

// torch's current stream of a device. Throws std::runtime_error where torch was built without CUDA.
Stream current_stream(int32_t device);

}  // namespace fx
