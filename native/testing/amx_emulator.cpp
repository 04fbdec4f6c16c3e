// Intel AMX in software: a SIGILL handler that decodes and executes the tile instructions which the machine
// does not have, so that tests run the very machine code that an AMX machine runs.
//
// Loading this library installs the handler. Each thread has its own tile file, unconfigured at first.
// Semantics: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, and Instruction Set
// Extensions Programming Reference (TDPFP16PS). What raises #UD or #GP there ends the process here, with a
// message that says why: no correct program does it.

#include <immintrin.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define FX_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int tile_count = 8, max_rows = 16, row_bytes = 64;

enum Kind : int {
  ldtilecfg,
  sttilecfg,
  tilerelease,
  tilezero,
  tileloadd,
  tileloaddt1,
  tilestored,
  tdpbf16ps,
  tdpfp16ps,
  tdpbssd,
  tdpbsud,
  tdpbusd,
  tdpbuud,
  kinds,
};
constexpr const char* kind_names[kinds] = {"ldtilecfg",   "sttilecfg",  "tilerelease", "tilezero",  "tileloadd",
                                           "tileloaddt1", "tilestored", "tdpbf16ps",   "tdpfp16ps", "tdpbssd",
                                           "tdpbsud",     "tdpbusd",    "tdpbuud"};

// The memory operand of LDTILECFG and STTILECFG. Palette 0 is the initial state: no tiles.
struct Config {
  uint8_t palette, start_row, reserved[14];
  uint16_t colsb[16];
  uint8_t rows[16];
};
static_assert(sizeof(Config) == 64);

struct Tile {
  alignas(64) uint8_t row[max_rows][row_bytes];
};

// One thread's tile file and counts. They outlive the thread, so that its counts can be read.
struct Thread {
  Config config;
  Tile tiles[tile_count];
  std::atomic<uint64_t> counts[kinds];
  std::atomic<uint64_t> multiplied_rows;  // rows of the left operands: what products cost on hardware
  Thread* next;
};

std::atomic<Thread*> threads{nullptr};
std::atomic<bool> installed{false};
struct sigaction previous;

// A pointer only: storage in the initial thread image, which a handler may use without allocating.
thread_local Thread* this_thread __attribute__((tls_model("initial-exec"))) = nullptr;

[[noreturn]] __attribute__((format(printf, 2, 3))) void fault(const char* exception, const char* format, ...) {
  char reason[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(reason, sizeof reason, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "AMX emulator: %s: %s\n", exception, reason);
  std::abort();
}

Thread& thread_state() {
  if (this_thread == nullptr) {
    void* memory = mmap(nullptr, sizeof(Thread), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fault("out of memory", "no tile file for this thread");
    this_thread = static_cast<Thread*>(memory);  // zeros are its initial state
    this_thread->next = threads.load();
    while (!threads.compare_exchange_weak(this_thread->next, this_thread)) {}
  }
  return *this_thread;
}

// ------------------------------------------------------------------------------------------ decoding

struct Instruction {
  Kind kind;
  int length;
  int reg, rm, vvvv;  // tiles, where operands are tiles
  uint8_t* address;   // memory operand, without the index for tile loads and stores
  int64_t stride;     // their index, scaled
};

uint64_t general_register(const ucontext_t& context, int number) {
  constexpr int order[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                             REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  return static_cast<uint64_t>(context.uc_mcontext.gregs[order[number]]);
}

int32_t displacement32(const uint8_t* at) {
  int32_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Which instruction an opcode of VEX map 0F38 is; `pp` is the implied prefix: none, 66, F3, F2.
bool kind_of(uint8_t opcode, int pp, bool memory, int reg, int rm, Kind& kind) {
  constexpr Kind none = kinds;
  constexpr Kind moves[4] = {none, tileloaddt1, tilestored, tileloadd};
  constexpr Kind floats[4] = {none, none, tdpbf16ps, tdpfp16ps};
  constexpr Kind bytes[4] = {tdpbuud, tdpbusd, tdpbsud, tdpbssd};
  kind = none;
  switch (opcode) {
    case 0x49:
      if (memory && reg == 0 && pp <= 1) kind = pp == 0 ? ldtilecfg : sttilecfg;
      if (!memory && pp == 0 && reg == 0 && rm == 0) kind = tilerelease;
      if (!memory && pp == 3 && rm == 0) kind = tilezero;
      break;
    case 0x4b:
      if (memory) kind = moves[pp];
      break;
    case 0x5c:
      if (!memory) kind = floats[pp];
      break;
    case 0x5e:
      if (!memory) kind = bytes[pp];
      break;
  }
  return kind != none;
}

// False for whatever is not a tile instruction.
bool decode(const ucontext_t& context, Instruction& out) {
  const auto* code = reinterpret_cast<const uint8_t*>(context.uc_mcontext.gregs[REG_RIP]);
  if (code[0] != 0xc4 || (code[1] & 0x1f) != 2) return false;  // three-byte VEX, map 0F38
  const int r = ~code[1] >> 7 & 1, x = ~code[1] >> 6 & 1, b = ~code[1] >> 5 & 1;
  if ((code[2] & 0x84) != 0) return false;  // W0, 128 bits
  out.vvvv = ~code[2] >> 3 & 15;
  const int pp = code[2] & 3;
  const uint8_t opcode = code[3], modrm = code[4];
  const int mod = modrm >> 6;
  out.reg = (modrm >> 3 & 7) | r << 3;
  out.rm = (modrm & 7) | b << 3;
  if (!kind_of(opcode, pp, mod != 3, out.reg, out.rm, out.kind)) return false;

  const uint8_t* at = code + 5;
  out.stride = 0;
  out.address = nullptr;
  if (mod != 3) {
    const bool sib = (modrm & 7) == 4;
    int base = out.rm, index = -1, scale = 0;
    if (sib) {
      scale = *at >> 6;
      index = (*at >> 3 & 7) | x << 3;
      base = (*at & 7) | b << 3;
      ++at;
    }
    uint64_t address = 0;
    const bool no_base = mod == 0 && (base & 7) == 5;  // a displacement only; without SIB, from the next instruction
    if (!no_base) address = general_register(context, base);
    if (mod == 1) {
      address += static_cast<uint64_t>(static_cast<int64_t>(static_cast<int8_t>(*at)));
      at += 1;
    } else if (mod == 2 || no_base) {
      address += static_cast<uint64_t>(static_cast<int64_t>(displacement32(at)));
      at += 4;
    }
    if (no_base && !sib) address += reinterpret_cast<uint64_t>(at);
    const uint64_t scaled = index == -1 || index == 4 ? 0 : general_register(context, index) << scale;
    const bool strided = opcode == 0x4b;
    if (strided && !sib) fault("#UD", "%s without a SIB byte", kind_names[out.kind]);
    if (strided)
      out.stride = static_cast<int64_t>(scaled);
    else
      address += scaled;
    out.address = reinterpret_cast<uint8_t*>(address);
    if (out.vvvv != 0) fault("#UD", "%s with VEX.vvvv", kind_names[out.kind]);
  }
  out.length = static_cast<int>(at - code);
  return true;
}

// ----------------------------------------------------------------------------------------- execution

void load_config(Thread& thread, const uint8_t* from) {
  Config config;
  std::memcpy(&config, from, sizeof config);
  std::memset(thread.tiles, 0, sizeof thread.tiles);
  if (config.palette == 0) {
    thread.config = {};
    return;
  }
  if (config.palette != 1) fault("#GP", "ldtilecfg: palette %d; there is only 1", config.palette);
  for (const uint8_t byte : config.reserved)
    if (byte != 0) fault("#GP", "ldtilecfg: a reserved byte is %d", byte);
  for (int t = 0; t < 16; ++t) {
    const int rows = config.rows[t], colsb = config.colsb[t];
    if (t >= tile_count && (rows != 0 || colsb != 0)) fault("#GP", "ldtilecfg: there is no tile %d", t);
    if (rows > max_rows || colsb > row_bytes)
      fault("#GP", "ldtilecfg: tile %d has %d rows of %d bytes; 16 of 64 are the most", t, rows, colsb);
    if ((rows == 0) != (colsb == 0)) fault("#GP", "ldtilecfg: tile %d has %d rows of %d bytes", t, rows, colsb);
  }
  if (config.start_row >= max_rows) fault("#GP", "ldtilecfg: start row %d", config.start_row);
  thread.config = config;
}

struct Shape {
  int rows, colsb;
};

Shape shape_of(const Thread& thread, Kind kind, int tile) {
  if (thread.config.palette == 0) fault("#UD", "%s while tiles are not configured", kind_names[kind]);
  if (tile >= tile_count) fault("#UD", "%s: there is no tile %d", kind_names[kind], tile);
  const Shape shape{thread.config.rows[tile], thread.config.colsb[tile]};
  if (shape.rows == 0) fault("#UD", "%s: tile %d is not configured", kind_names[kind], tile);
  return shape;
}

void load_tile(Thread& thread, const Instruction& i) {
  const Shape shape = shape_of(thread, i.kind, i.reg);
  Tile& tile = thread.tiles[i.reg];
  std::memset(&tile, 0, sizeof tile);
  for (int r = thread.config.start_row; r < shape.rows; ++r)
    std::memcpy(tile.row[r], i.address + r * i.stride, static_cast<size_t>(shape.colsb));
  thread.config.start_row = 0;
}

void store_tile(Thread& thread, const Instruction& i) {
  const Shape shape = shape_of(thread, i.kind, i.reg);
  for (int r = thread.config.start_row; r < shape.rows; ++r)
    std::memcpy(i.address + r * i.stride, thread.tiles[i.reg].row[r], static_cast<size_t>(shape.colsb));
  thread.config.start_row = 0;
}

// The operands of a product: C[rows, columns] += A[rows, depth] · B[depth, columns], counted in dwords.
struct Product {
  Tile &c, &a, &b;
  int rows, columns, depth;
};

Product product_of(Thread& thread, const Instruction& i) {
  const char* name = kind_names[i.kind];
  const int c = i.reg, a = i.rm, b = i.vvvv;
  const Shape sc = shape_of(thread, i.kind, c), sa = shape_of(thread, i.kind, a), sb = shape_of(thread, i.kind, b);
  if (c == a || c == b || a == b) fault("#UD", "%s: tiles %d, %d and %d are not distinct", name, c, a, b);
  for (const Shape& s : {sc, sa, sb})
    if (s.colsb % 4 != 0) fault("#UD", "%s: rows of %d bytes are not whole dwords", name, s.colsb);
  if (sc.rows != sa.rows) fault("#UD", "%s: the sums have %d rows, the left operand %d", name, sc.rows, sa.rows);
  if (sc.colsb != sb.colsb)
    fault("#UD", "%s: the sums have rows of %d bytes, the right operand of %d", name, sc.colsb, sb.colsb);
  if (sa.colsb / 4 != sb.rows)
    fault("#UD", "%s: the left operand has %d dwords a row, the right one %d rows", name, sa.colsb / 4, sb.rows);
  if (thread.config.start_row != 0) fault("#UD", "%s: start row %d", name, thread.config.start_row);
  thread.multiplied_rows.fetch_add(static_cast<uint64_t>(sa.rows), std::memory_order_relaxed);
  return {thread.tiles[c], thread.tiles[a], thread.tiles[b], sc.rows, sc.colsb / 4, sb.rows};
}

template <class T>
T element(const Tile& tile, int row, int index) {
  T value;
  std::memcpy(&value, tile.row[row] + index * static_cast<int>(sizeof(T)), sizeof value);
  return value;
}

float widen_bf16(uint16_t bits) { return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16); }
float widen_fp16(uint16_t bits) { return _cvtsh_ss(bits); }  // exact, subnormals too, whatever MXCSR says

// Even and odd elements of a row are summed apart, then together, then onto the sums: the documented order.
// All with subnormal operands and results as zeros, rounded to nearest even.
template <float (*widen)(uint16_t)>
void multiply_pairs(const Product& p) {
  const unsigned mxcsr = _mm_getcsr();
  _mm_setcsr(0x1f80 | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON);
  float b[2][max_rows][16];
  for (int k = 0; k < p.depth; ++k)
    for (int n = 0; n < 16; ++n)
      for (int half = 0; half < 2; ++half) b[half][k][n] = widen(element<uint16_t>(p.b, k, 2 * n + half));
  for (int m = 0; m < p.rows; ++m) {
    float even[16] = {}, odd[16] = {}, sums[16];
    for (int k = 0; k < p.depth; ++k) {
      const float first = widen(element<uint16_t>(p.a, m, 2 * k)), second = widen(element<uint16_t>(p.a, m, 2 * k + 1));
      for (int n = 0; n < 16; ++n) even[n] = __builtin_fmaf(first, b[0][k][n], even[n]);
      for (int n = 0; n < 16; ++n) odd[n] = __builtin_fmaf(second, b[1][k][n], odd[n]);
    }
    std::memcpy(sums, p.c.row[m], sizeof sums);
    for (int n = 0; n < 16; ++n) sums[n] = n < p.columns ? sums[n] + (even[n] + odd[n]) : 0.0f;
    std::memcpy(p.c.row[m], sums, sizeof sums);
  }
  _mm_setcsr(mxcsr);
}

// Four products of bytes onto each dword, which wraps around.
template <class A, class B>
void multiply_bytes(const Product& p) {
  for (int m = 0; m < p.rows; ++m)
    for (int n = 0; n < p.columns; ++n) {
      auto sum = element<uint32_t>(p.c, m, n);
      for (int k = 0; k < p.depth; ++k)
        for (int i = 0; i < 4; ++i)
          sum += static_cast<uint32_t>(static_cast<int32_t>(element<A>(p.a, m, 4 * k + i)) *
                                       static_cast<int32_t>(element<B>(p.b, k, 4 * n + i)));
      std::memcpy(p.c.row[m] + 4 * n, &sum, sizeof sum);
    }
}

void execute(Thread& thread, const Instruction& i) {
  switch (i.kind) {
    case ldtilecfg:
      return load_config(thread, i.address);
    case sttilecfg:
      std::memcpy(i.address, &thread.config, sizeof thread.config);
      return;
    case tilerelease:
      thread.config = {};
      std::memset(thread.tiles, 0, sizeof thread.tiles);
      return;
    case tilezero:
      shape_of(thread, i.kind, i.reg);
      std::memset(&thread.tiles[i.reg], 0, sizeof(Tile));
      return;
    case tileloadd:
    case tileloaddt1:
      return load_tile(thread, i);
    case tilestored:
      return store_tile(thread, i);
    case tdpbf16ps:
      return multiply_pairs<widen_bf16>(product_of(thread, i));
    case tdpfp16ps:
      return multiply_pairs<widen_fp16>(product_of(thread, i));
    case tdpbssd:
      return multiply_bytes<int8_t, int8_t>(product_of(thread, i));
    case tdpbsud:
      return multiply_bytes<int8_t, uint8_t>(product_of(thread, i));
    case tdpbusd:
      return multiply_bytes<uint8_t, int8_t>(product_of(thread, i));
    case tdpbuud:
      return multiply_bytes<uint8_t, uint8_t>(product_of(thread, i));
    case kinds:
      break;
  }
}

// ------------------------------------------------------------------------------------------- handler

void handle(int signal, siginfo_t* info, void* raw) {
  auto& context = *static_cast<ucontext_t*>(raw);
  Instruction instruction;
  if (decode(context, instruction)) {
    Thread& thread = thread_state();
    execute(thread, instruction);
    thread.counts[instruction.kind].fetch_add(1, std::memory_order_relaxed);
    context.uc_mcontext.gregs[REG_RIP] += instruction.length;
    return;
  }
  // Not ours: whoever was there before, or the default by executing it again.
  if (previous.sa_flags & SA_SIGINFO) return previous.sa_sigaction(signal, info, raw);
  if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) return previous.sa_handler(signal);
  sigaction(SIGILL, &previous, nullptr);
}

}  // namespace

// Makes the handler the process's own again: who enables Python's faulthandler later takes its place.
FX_EXPORT void amx_emulator_install() {
  struct sigaction action = {}, current = {};
  sigaction(SIGILL, nullptr, &current);
  if (current.sa_sigaction == handle) return;
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  installed = sigaction(SIGILL, &action, &previous) == 0;
}

namespace {
__attribute__((constructor)) void at_loading() { amx_emulator_install(); }
}  // namespace

// The product's question whether tile instructions are executed: see native/cpu/isa.cpp.
FX_EXPORT bool fxrewrite_testing_emulates_amx() { return installed; }

FX_EXPORT int amx_emulator_kinds() { return kinds; }
FX_EXPORT const char* amx_emulator_kind_name(int kind) { return kind_names[kind]; }

// Threads that have executed a tile instruction; the newest is the first.
FX_EXPORT int amx_emulator_threads() {
  int count = 0;
  for (const Thread* thread = threads.load(); thread != nullptr; thread = thread->next) ++count;
  return count;
}

// For one of them: executed instructions of each kind, the rows of left operands that were multiplied, and
// whether its tiles are configured now.
FX_EXPORT void amx_emulator_thread(int index, uint64_t* counts, uint64_t* multiplied_rows, bool* configured) {
  const Thread* thread = threads.load();
  while (index-- > 0) thread = thread->next;
  for (int kind = 0; kind < kinds; ++kind) counts[kind] = thread->counts[kind];
  *multiplied_rows = thread->multiplied_rows;
  *configured = thread->config.palette != 0;
}

FX_EXPORT void amx_emulator_reset() {
  for (Thread* thread = threads.load(); thread != nullptr; thread = thread->next) {
    for (auto& count : thread->counts) count = 0;
    thread->multiplied_rows = 0;
  }
}
