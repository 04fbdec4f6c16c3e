// The functions of native/cuda/device.h on a CPU: kernels run as they are, for tests.
//
// The threads of a block are fibers on one thread of the CPU. A fiber runs until it waits: at a barrier, or at
// an instruction of the whole warp, which is done when its last lane has come. Which fiber runs next is drawn
// anew at each turn, so that a result that depends on the order of threads shows. Shared memory is NaN before
// a block starts, has fences, and ends where the launch said.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>

#define FX_DEVICE inline
#define FX_CALLED inline
#define FX_BOTH inline
#define FX_KERNEL(threads, blocks) void
#define FX_ARGUMENT(type) const type
#define FX_UNROLL
#define FX_ROLLED
#define FX_UNROLL_BY(count)

namespace fx {

namespace shim {

// The running thread.
struct Here {
  int thread;
  int block[3];
};
extern Here here;
extern char* shared;

[[noreturn]] void fail(const char* what);

void wait_for_block();

// Instructions of a whole warp: what each lane brings, and what it gets.
enum class Collective { load_matrices, load_matrices_transposed, multiply_add };

struct Lane {
  const uint16_t* row;
  uint32_t a[4], b[2];
  float c[4];
  uint32_t out[4];
};

// Gives the lane back with its results, once all 32 have come.
Lane with_warp(Collective what, const Lane& lane);

// Copies are done no sooner than someone waits for them.
void start_copy(void* to, const void* from, int bytes);
void commit_copies();
void wait_for_copies(size_t pending);

void run(const std::function<void()>& kernel, Grid grid, int threads, size_t shared_bytes);

inline void check_aligned(const void* address, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(address) % bytes != 0) fail("a vector access is not aligned");
}

// Must lie in the block's shared memory.
void check_shared(const void* address, size_t bytes);

}  // namespace shim

inline int thread_index() { return shim::here.thread; }
inline int lane_index() { return shim::here.thread % 32; }
inline int warp_index() { return shim::here.thread / 32; }
inline int block_x() { return shim::here.block[0]; }
inline int block_y() { return shim::here.block[1]; }
inline int block_z() { return shim::here.block[2]; }
inline void barrier() { shim::wait_for_block(); }
inline char* shared_memory() { return shim::shared; }

inline float float_of_bits(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t bits_of_float(float x) { return std::bit_cast<uint32_t>(x); }

inline Vec16 load_global(const void* from) {
  shim::check_aligned(from, 16);
  return *static_cast<const Vec16*>(from);
}

inline void load_two(float (&out)[2], const float* from) {
  shim::check_aligned(from, 8);
  out[0] = from[0], out[1] = from[1];
}

inline Vec16 load_streamed(const void* from) { return load_global(from); }

inline void copy_async(void* to, const void* from, int bytes) {
  shim::check_shared(to, 16);
  shim::check_aligned(to, 16);
  shim::check_aligned(from, 16);
  shim::start_copy(to, from, bytes);
}

inline void commit_copies() { shim::commit_copies(); }

template <int Pending>
inline void wait_for_copies() {
  shim::wait_for_copies(Pending);
}

inline void store_global(void* to, const Vec16& v) {
  shim::check_aligned(to, 16);
  *static_cast<Vec16*>(to) = v;
}

inline Vec16 load_shared(const void* from) {
  shim::check_shared(from, 16);
  return load_global(from);
}

inline void store_shared(void* to, const Vec16& v) {
  shim::check_shared(to, 16);
  store_global(to, v);
}

inline uint32_t round_to_bf16(float x) {
  const uint32_t bits = bits_of_float(x);
  if (std::isnan(x)) return bits >> 16 | 0x40;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

inline float widen_bf16(uint32_t bits) { return float_of_bits(bits << 16); }

inline uint32_t pack_bf16(float low, float high) { return round_to_bf16(low) | round_to_bf16(high) << 16; }

inline uint32_t relu_bf16(uint32_t pair) {
  const auto one = [](uint32_t bits) { return widen_bf16(bits) < 0 || bits == 0x8000 ? 0 : bits; };
  return one(pair & 0xffff) | one(pair >> 16) << 16;
}

inline uint32_t multiply_bf16(uint32_t a, uint32_t b) {
  return pack_bf16(widen_bf16(a & 0xffff) * widen_bf16(b & 0xffff), widen_bf16(a >> 16) * widen_bf16(b >> 16));
}

inline uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = low | static_cast<uint64_t>(high) << 32;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t nibble = selector >> (4 * i) & 0xf;
    if (nibble > 7) shim::fail("a byte selector with a sign");
    out |= static_cast<uint32_t>(bytes >> (8 * nibble) & 0xff) << (8 * i);
  }
  return out;
}

inline void load_matrices_by(shim::Collective how, uint32_t (&out)[4], const uint16_t* row) {
  shim::check_shared(row, 16);
  shim::check_aligned(row, 16);
  shim::Lane lane{};
  lane.row = row;
  lane = shim::with_warp(how, lane);
  for (int i = 0; i < 4; ++i) out[i] = lane.out[i];
}

inline void load_matrices(uint32_t (&out)[4], const uint16_t* row) {
  load_matrices_by(shim::Collective::load_matrices, out, row);
}

inline void load_matrices_transposed(uint32_t (&out)[4], const uint16_t* row) {
  load_matrices_by(shim::Collective::load_matrices_transposed, out, row);
}

inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  shim::Lane lane{};
  for (int i = 0; i < 4; ++i) lane.a[i] = a[i], lane.c[i] = c[i];
  lane.b[0] = b0, lane.b[1] = b1;
  lane = shim::with_warp(shim::Collective::multiply_add, lane);
  for (int i = 0; i < 4; ++i) c[i] = lane.c[i];
}

template <class Args>
void launch(void (*kernel)(Args), Grid grid, int threads, size_t shared_bytes, Stream, const Args& args) {
  shim::run([&] { kernel(args); }, grid, threads, shared_bytes);
}

}  // namespace fx
