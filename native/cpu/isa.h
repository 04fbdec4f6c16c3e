// Which instruction sets this machine has, and which the user lets us use.
#pragma once

namespace fx {

// Ordered: each level includes those before it.
enum class Isa : int { portable, avx2, avx512, avx512_bf16, amx_bf16 };

const char* name_of(Isa level);

// The best level that the CPU has, whose registers the operating system saves and lets us use. The first call
// asks Linux for the use of tile registers, where the CPU has them.
Isa detected_isa();

// Why this machine does not have amx_bf16, in a few words; empty where it does.
const char* amx_obstacle();

// detected_isa() capped by the environment variable FXREWRITE_ISA, read once.
// Throws std::runtime_error, at every call, when that names no level.
Isa allowed_isa();

}  // namespace fx
