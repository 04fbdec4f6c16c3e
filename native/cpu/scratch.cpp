#include "scratch.h"

#include <cstdlib>
#include <new>

namespace fx {

namespace {

constexpr size_t alignment = 64;
constexpr size_t kept = size_t{8} << 20;  // a larger buffer shrinks again at the next, smaller request

struct Buffer {
  void* memory = nullptr;
  size_t size = 0;

  ~Buffer() { std::free(memory); }

  void* at_least(size_t bytes) {
    if (bytes > size || (size > kept && bytes <= kept)) {
      std::free(memory);
      size = 0;
      const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
      memory = std::aligned_alloc(alignment, rounded);
      if (memory == nullptr) throw std::bad_alloc();
      size = rounded;
    }
    return memory;
  }
};

thread_local Buffer buffers[static_cast<int>(Scratch::count)];

}  // namespace

void* scratch(Scratch slot, size_t bytes) { return buffers[static_cast<int>(slot)].at_least(bytes ? bytes : 1); }

}  // namespace fx
