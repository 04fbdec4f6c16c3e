#include "quality.h"

namespace fx {

namespace {
thread_local bool allowed_here = false;
}  // namespace

bool bf16_operands_allowed() { return allowed_here; }
void allow_bf16_operands(bool allowed) { allowed_here = allowed; }

}  // namespace fx
