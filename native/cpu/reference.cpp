#include "reference.h"

#include <stdexcept>
#include <string>

// Since torch 2.13, so beyond the version that we target: null where an older torch loads us.
extern "C" [[gnu::weak]] const char* torch_exception_get_what_without_backtrace();

namespace fx {

void call_dispatcher(const char* name, StableIValue* stack) {
  if (torch_call_dispatcher(name, "", stack, TORCH_ABI_VERSION) == TORCH_SUCCESS) return;
  const char* what =
      torch_exception_get_what_without_backtrace ? torch_exception_get_what_without_backtrace() : nullptr;
  throw std::runtime_error(what != nullptr ? std::string(what)
                                           : std::string(name) + " failed (its message is on stderr)");
}

}  // namespace fx
