// Which instruction sets this machine has, and which the user lets us use.
#pragma once

namespace fx {

// Ordered: each level includes those before it.
enum class Isa : int { portable, avx2, avx512, avx512_bf16 };

const char* name_of(Isa level);

// The best level that the CPU has and whose registers the operating system saves.
Isa detected_isa();

// detected_isa() capped by the environment variable FXREWRITE_ISA, read once.
// Throws std::runtime_error, at every call, when that names no level.
Isa allowed_isa();

}  // namespace fx
