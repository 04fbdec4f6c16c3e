// Several aligned arrays in one scratch buffer: sized in a first walk, handed out in a second.
#pragma once

#include "../engine/base.h"

namespace fx {

// With a null start it only counts: `taken` is then the number of bytes to ask scratch() for.
struct Workspace {
  char* start = nullptr;
  size_t taken = 0;

  template <class T>
  FX_MEMBER T* take(int64_t count) {
    T* here = start == nullptr ? nullptr : reinterpret_cast<T*>(start + taken);
    taken += static_cast<size_t>(round_up(count * static_cast<int64_t>(sizeof(T)), 64));
    return here;
  }
};

// `layout` is called twice with a Workspace: it takes its arrays, always the same.
template <class Layout>
FX_INLINE void lay_out(Scratch slot, Layout&& layout) {
  Workspace counting;
  layout(counting);
  Workspace workspace{static_cast<char*>(scratch(slot, counting.taken))};
  layout(workspace);
}

}  // namespace fx
