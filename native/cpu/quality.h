// The quality level of this thread, as kernels need it: see fxrewrite/quality.py.
#pragma once

namespace fx {

// May float32 operands of products be rounded to bfloat16, where an op says that it does so? For the calling
// thread: an op asks once, on entry, and hands the answer to its other threads.
bool bf16_operands_allowed();
void allow_bf16_operands(bool allowed);

}  // namespace fx
