// Element types by name; kernel files see these and never torch's headers.
#pragma once

#include <cstdint>

namespace fx {

enum class Dtype : uint8_t {
  float64,
  float32,
  float16,
  bfloat16,
  float8_e4m3fn,
  float8_e5m2,
  float8_e4m3fnuz,
  float8_e5m2fnuz,
  boolean,
  other,
};

}  // namespace fx
