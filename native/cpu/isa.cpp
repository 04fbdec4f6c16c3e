#include "isa.h"

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace fx {

namespace {

constexpr const char* names[] = {"portable", "avx2", "avx512", "avx512_bf16"};

#if defined(__x86_64__)

struct Registers {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(uint32_t leaf, uint32_t subleaf) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);  // zeros where there is no such leaf
  return r;
}

bool bits(uint32_t word, std::initializer_list<int> positions) {
  for (int position : positions)
    if (!(word >> position & 1)) return false;
  return true;
}

// Vector registers that the operating system does not save may not be used, whatever CPUID says.
uint64_t saved_state() {
  uint32_t low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

Isa detect() {
  const Registers basic = cpuid(1, 0), extended = cpuid(7, 0), extended1 = cpuid(7, 1);
  if (!bits(basic.ecx, {27})) return Isa::portable;  // OSXSAVE: xgetbv exists
  const uint64_t state = saved_state();
  const bool ymm = (state & 0x06) == 0x06, zmm = (state & 0xe6) == 0xe6;

  const bool avx2 = ymm && bits(basic.ecx, {12, 28, 29}) && bits(extended.ebx, {5, 8});  // FMA, AVX, F16C; AVX2, BMI2
  if (!avx2) return Isa::portable;
  const bool avx512 = zmm && bits(extended.ebx, {16, 17, 30, 31});  // F, DQ, BW, VL
  if (!avx512) return Isa::avx2;
  // VBMI decodes FP8. Cooper Lake alone has BF16 without it, and counts as avx512.
  const bool bf16 = bits(extended1.eax, {5}) && bits(extended.ecx, {1});
  return bf16 ? Isa::avx512_bf16 : Isa::avx512;
}

#else

Isa detect() { return Isa::portable; }

#endif

Isa cap_by_environment(Isa best) {
  const char* wanted = std::getenv("FXREWRITE_ISA");
  if (wanted == nullptr || *wanted == '\0') return best;
  for (int level = 0; level < static_cast<int>(std::size(names)); ++level)
    if (std::string(wanted) == names[level]) return level < static_cast<int>(best) ? static_cast<Isa>(level) : best;
  std::string known;
  for (const char* name : names) known += std::string(name) + ", ";
  throw std::runtime_error("FXREWRITE_ISA=" + std::string(wanted) + " is not an instruction set; known are " + known +
                           "none");
}

}  // namespace

const char* name_of(Isa level) { return names[static_cast<int>(level)]; }

Isa detected_isa() {
  static const Isa level = detect();
  return level;
}

Isa allowed_isa() {
  static const Isa level = cap_by_environment(detected_isa());
  return level;
}

}  // namespace fx
