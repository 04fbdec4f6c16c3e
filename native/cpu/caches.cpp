#include "caches.h"

#include <unistd.h>

namespace fx {

namespace {

int64_t size_of([[maybe_unused]] int name, int64_t otherwise) {
  const long size = name < 0 ? 0 : sysconf(name);
  return size > 0 ? size : otherwise;
}

Caches look() {
#ifdef _SC_LEVEL1_DCACHE_SIZE
  const int l1 = _SC_LEVEL1_DCACHE_SIZE, l2 = _SC_LEVEL2_CACHE_SIZE;
#else
  const int l1 = -1, l2 = -1;
#endif
  return {size_of(l1, 32 << 10), size_of(l2, 512 << 10)};
}

}  // namespace

const Caches& caches() {
  static const Caches found = look();
  return found;
}

}  // namespace fx
