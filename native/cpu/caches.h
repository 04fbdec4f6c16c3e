// The sizes of this machine's caches.
#pragma once

#include <cstdint>

namespace fx {

// Bytes of one core's L1 (data) and L2. Where the system does not tell, those of a small core. L3 is shared,
// and what C libraries say of it is not to be relied on.
struct Caches {
  int64_t l1, l2;
};

const Caches& caches();

}  // namespace fx
