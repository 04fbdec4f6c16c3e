#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "device.h"  // includes cuda_shim.h

namespace fx::shim {

Here here{};
char* shared = nullptr;

namespace {

constexpr size_t stack_bytes = 128 << 10, fence_bytes = 256;
constexpr size_t most_shared_bytes = 163 << 10;  // of a block, on sm_80
constexpr int most_threads = 1024;

enum class State { ready, at_barrier, in_warp, done };

struct Copy {
  void* to;
  const void* from;
  int bytes;
};

// Started by its ucontext, which then only holds its stack: switches are jumps, as they make no system call.
struct Fiber {
  std::unique_ptr<char[]> stack{new char[stack_bytes]};
  ucontext_t context;
  jmp_buf place;
  bool started;
  State state;
  Lane lane;
  std::vector<std::vector<Copy>> copies;  // groups; the last is still open
};

struct Warp {
  Collective what;
  int arrived;
};

struct Block {
  std::vector<Fiber> fibers = std::vector<Fiber>(most_threads);
  std::vector<Warp> warps = std::vector<Warp>(most_threads / 32);
  int threads = 0, waiting = 0, done = 0;
  jmp_buf scheduler;
  ucontext_t outside;
  const std::function<void()>* kernel = nullptr;
  std::mt19937 order{1};
};
Block block;

std::vector<char> memory;
size_t shared_size = 0;

Fiber& current() { return block.fibers[static_cast<size_t>(here.thread)]; }

void give_up_turn(State state) {
  Fiber& fiber = current();
  fiber.state = state;
  if (_setjmp(fiber.place) == 0) _longjmp(block.scheduler, 1);
}

void body() {
  (*block.kernel)();
  current().state = State::done;
  ++block.done;
  _longjmp(block.scheduler, 1);
}

void resume(int thread) {
  here.thread = thread;
  Fiber& fiber = current();
  if (_setjmp(block.scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.place, 1);
  fiber.started = true;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = stack_bytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, body, 0);
  setcontext(&fiber.context);
}

// ------------------------------------------------------------------------------ instructions of a warp

void load_matrices(Fiber* lanes, bool transposed) {
  for (int l = 0; l < 32; ++l)
    for (int i = 0; i < 4; ++i) {
      const auto element = [&](int row, int column) -> uint32_t {
        if (transposed) std::swap(row, column);
        return lanes[8 * i + row].lane.row[column];
      };
      lanes[l].lane.out[i] = element(l / 4, 2 * (l % 4)) | element(l / 4, 2 * (l % 4) + 1) << 16;
    }
}

float half_of(uint32_t pair, int index) { return widen_bf16(pair >> (16 * index) & 0xffff); }

// The fp32 at or next to a number, towards zero: tensor cores align the products of an instruction with the sum,
// add them up, and cut (Fasi et al., 2021, "Numerical behavior of NVIDIA tensor cores").
float cut(double sum) {
  const float nearest = static_cast<float>(sum);
  return std::fabs(static_cast<double>(nearest)) > std::fabs(sum) && !std::isinf(nearest)
             ? std::nextafterf(nearest, 0.0f)
             : nearest;
}

// Fragments as in the PTX manual, "Matrix Fragments for mma.m16n8k16 with floating point type".
void multiply_add(Fiber* lanes) {
  float a[16][16], b[16][8];
  for (int l = 0; l < 32; ++l) {
    const int group = l / 4, member = l % 4;
    for (int i = 0; i < 8; ++i) {
      const int row = (i < 2 || (i >= 4 && i < 6)) ? group : group + 8;
      const int column = 2 * member + i % 2 + (i >= 4 ? 8 : 0);
      a[row][column] = half_of(lanes[l].lane.a[i / 2], i % 2);
    }
    for (int i = 0; i < 4; ++i)
      b[2 * member + i % 2 + (i >= 2 ? 8 : 0)][group] = half_of(lanes[l].lane.b[i / 2], i % 2);
  }
  for (int l = 0; l < 32; ++l)
    for (int i = 0; i < 4; ++i) {
      const int row = l / 4 + (i >= 2 ? 8 : 0), column = 2 * (l % 4) + i % 2;
      double sum = lanes[l].lane.c[i];
      for (int k = 0; k < 16; ++k) sum += static_cast<double>(a[row][k]) * b[k][column];
      lanes[l].lane.c[i] = cut(sum);
    }
}

void run_block() {
  std::vector<int> turn(static_cast<size_t>(block.threads));
  for (int t = 0; t < block.threads; ++t) {
    turn[static_cast<size_t>(t)] = t;
    Fiber& fiber = block.fibers[static_cast<size_t>(t)];
    fiber.started = false, fiber.state = State::ready;
    fiber.copies.assign(1, {});
  }
  for (Warp& warp : block.warps) warp.arrived = 0;
  block.waiting = block.done = 0;
  while (block.done < block.threads) {
    std::shuffle(turn.begin(), turn.end(), block.order);
    bool progress = false;
    for (const int t : turn) {
      if (block.fibers[static_cast<size_t>(t)].state != State::ready) continue;
      progress = true;
      resume(t);
    }
    if (!progress) fail("threads wait for others that do not come: a barrier or a warp's instruction in a branch");
  }
}

}  // namespace

void fail(const char* what) {
  std::fprintf(stderr, "cuda_shim: %s (block %d %d %d, thread %d)\n", what, here.block[0], here.block[1], here.block[2],
               here.thread);
  std::abort();
}

void wait_for_block() {
  if (++block.waiting == block.threads - block.done) {
    if (block.done != 0) fail("a barrier that some threads never reach");
    block.waiting = 0;
    for (int t = 0; t < block.threads; ++t) {
      Fiber& fiber = block.fibers[static_cast<size_t>(t)];
      if (fiber.state == State::at_barrier) fiber.state = State::ready;
    }
    return give_up_turn(State::ready);
  }
  give_up_turn(State::at_barrier);
}

Lane with_warp(Collective what, const Lane& lane) {
  const size_t first = static_cast<size_t>(here.thread / 32 * 32);
  Warp& warp = block.warps[first / 32];
  if (warp.arrived > 0 && warp.what != what) fail("lanes of a warp at different instructions");
  Fiber& mine = current();
  mine.lane = lane;
  warp.what = what;
  if (++warp.arrived < 32) {
    give_up_turn(State::in_warp);
    return mine.lane;
  }
  warp.arrived = 0;
  Fiber* lanes = &block.fibers[first];
  if (what == Collective::multiply_add)
    multiply_add(lanes);
  else
    load_matrices(lanes, what == Collective::load_matrices_transposed);
  for (int l = 0; l < 32; ++l)
    if (lanes[l].state == State::in_warp) lanes[l].state = State::ready;
  return mine.lane;
}

void check_shared(const void* address, size_t bytes) {
  const char* at = static_cast<const char*>(address);
  if (at < shared || at + bytes > shared + shared_size) fail("an access beyond the block's shared memory");
}

void start_copy(void* to, const void* from, int bytes) { current().copies.back().push_back({to, from, bytes}); }

void commit_copies() { current().copies.emplace_back(); }

void wait_for_copies(size_t pending) {
  auto& groups = current().copies;
  while (groups.size() - 1 > pending) {
    for (const Copy& copy : groups.front()) {
      std::memset(copy.to, 0, 16);
      if (copy.bytes > 0) std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
    }
    groups.erase(groups.begin());
  }
}

void run(const std::function<void()>& kernel, Grid grid, int threads, size_t shared_bytes) {
  if (threads % 32 != 0 || threads > most_threads) fail("threads of a block: a multiple of 32, at most 1024");
  if (shared_bytes > most_shared_bytes) fail("more shared memory than sm_80 has");
  if (grid.y > 65535 || grid.z > 65535) fail("more blocks than a grid has");
  memory.assign(shared_bytes + 2 * fence_bytes + 16, '\xa5');
  shared = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory.data()) + fence_bytes + 15) / 16 * 16);
  shared_size = shared_bytes;
  block.threads = threads;
  block.kernel = &kernel;
  for (int64_t z = 0; z < grid.z; ++z)
    for (int64_t y = 0; y < grid.y; ++y)
      for (int64_t x = 0; x < grid.x; ++x) {
        here.block[0] = static_cast<int>(x), here.block[1] = static_cast<int>(y), here.block[2] = static_cast<int>(z);
        std::memset(shared, 0xff, shared_bytes);
        run_block();
        const auto intact = [](char c) { return c == '\xa5'; };
        if (!std::all_of(memory.data(), shared, intact) ||
            !std::all_of(shared + shared_bytes, memory.data() + memory.size(), intact))
          fail("a write beyond the block's shared memory");
      }
}

}  // namespace fx::shim
