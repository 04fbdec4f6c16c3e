// Working memory of kernels: per thread, grown on demand, kept for the next call.
#pragma once

#include <cstddef>

namespace fx {

// Slots keep buffers apart that one thread uses at the same time.
enum class Scratch : int { panel, accumulator, activations, user0, user1, user2, user3, user4, count };

// At least `bytes`, aligned to 64, contents undefined; valid until this thread's next call with the
// same slot. Throws std::bad_alloc.
void* scratch(Scratch slot, size_t bytes);

}  // namespace fx
