// How often each implementation of each op ran: what makes a silent fallback visible.
#pragma once

#include <string>

namespace fx {

// Counts one call of `op` by "implementation" or, where it has several algorithms,
// "implementation:algorithm". All must be string literals (their addresses are kept). Thread-safe.
void count(const char* op, const char* implementation, const char* algorithm = nullptr);

// One line for each that has run since the reset: "op\timplementation\tcalls\n".
std::string counters_text();

void reset_counters();

}  // namespace fx
