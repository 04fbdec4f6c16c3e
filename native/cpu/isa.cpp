#include "isa.h"

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#ifdef FXREWRITE_HAS_AMX_BF16  // on Linux only
#include <sys/syscall.h>
#include <unistd.h>

// Defined by the AMX emulator of native/testing and by nothing else: whoever answers that tile instructions
// are executed brings the code that executes them.
extern "C" __attribute__((weak, visibility("default"))) bool fxrewrite_testing_emulates_amx();
#endif

namespace fx {

namespace {

constexpr const char* names[] = {"portable", "avx2", "avx512", "avx512_bf16", "amx_bf16"};

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

// The level without AMX.
Isa detect_vectors() {
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

Isa detect_vectors() { return Isa::portable; }

#endif

#ifdef FXREWRITE_HAS_AMX_BF16

// Linux saves tile registers only for processes that asked: their signal frames grow by 8 KiB.
bool permitted_by_system() {
  constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

const char* find_amx_obstacle() {
  if (detect_vectors() < Isa::avx512_bf16) return "the CPU has no AVX512-BF16";
  if (fxrewrite_testing_emulates_amx != nullptr && fxrewrite_testing_emulates_amx()) return "";
  if (!bits(cpuid(7, 0).edx, {22, 24})) return "the CPU has no AMX-BF16";
  const Registers palette = cpuid(0x1d, 1);
  const bool usual = palette.ebx == (8u << 16 | 64u) && (palette.ecx & 0xffff) == 16;
  if (!usual) return "the CPU's tiles are not eight of 16 rows of 64 bytes";
  constexpr uint64_t tiles = 3u << 17;  // configuration and data
  if ((saved_state() & tiles) != tiles) return "the operating system does not save tile registers";
  if (!permitted_by_system()) return "the operating system refuses the use of tile registers";
  return "";
}

#else

const char* find_amx_obstacle() { return "the library was built without AMX"; }

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

const char* amx_obstacle() {
  static const char* const obstacle = find_amx_obstacle();
  return obstacle;
}

Isa detected_isa() {
  static const Isa level = *amx_obstacle() == '\0' ? Isa::amx_bf16 : detect_vectors();
  return level;
}

Isa allowed_isa() {
  static const Isa level = cap_by_environment(detected_isa());
  return level;
}

}  // namespace fx
