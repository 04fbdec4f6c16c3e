// Products of bf16 matrices on AMX: registers are tiles, up to 16 rows of 64 bytes.
//
// tdpbf16ps adds A[16][32] · B[32][16] to fp32 sums C[16][16]. A is row-major and read where it lies; B is a
// panel of the GEMM engine, whose pairs of k are just what the instruction wants. Two tiles of A meet two of B,
// so that each load feeds two products: four tiles of sums, two of A, two of B are all eight. A load takes 8
// cycles and a product as many as A has rows, at best: at 16 rows four loads hide behind four products.
//
// What is left over of rows and columns is a matter of the tiles' configuration, which says how much of each
// tile there is; nothing is read or written beyond it.
#pragma once

#include "../engine/base.h"
#include "../engine/sink.inl.h"

namespace fx {

namespace {

// The most rows and columns of sums, and the most k of one product.
constexpr int64_t amx_block = 32, amx_step = 32;

// Intrinsics for these know nothing of the memory that they read, in GCC; nor need the compiler know of tiles.
template <int tile>
FX_INLINE void tile_load(const void* from, int64_t stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(tile) : "memory");
}
template <int tile>
FX_INLINE void tile_store(void* to, int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(tile) : "memory");
}
template <int tile>
FX_INLINE void tile_zero() {
  __asm__ volatile("tilezero %%tmm%c0" ::"i"(tile));
}
template <int c, int a, int b>
FX_INLINE void tile_multiply() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(c), "i"(a), "i"(b));
}

// What the tiles are configured for: sums of rows x columns, `pairs` of k in a step. All zero: for nothing.
struct TileShape {
  uint8_t rows, columns, pairs;
};

constinit thread_local TileShape configured_shape{0, 0, 0};

// Sums are tiles 0 1 2 3, row by row; tiles of A 4 and 5, of B 6 and 7.
FX_INLINE void configure_tiles(TileShape shape) {
  if (__builtin_memcmp(&configured_shape, &shape, sizeof shape) == 0) return;
  struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
  } config{};
  config.palette = 1;
  const auto describe = [&](int tile, int rows, int bytes) {
    if (rows > 0 && bytes > 0)
      config.rows[tile] = static_cast<uint8_t>(rows), config.bytes[tile] = static_cast<uint16_t>(bytes);
  };
  for (int i = 0; i < 2; ++i) {
    const int rows = static_cast<int>(smaller(larger(shape.rows - 16 * i, 0), 16));
    describe(4 + i, rows, 4 * shape.pairs);
    for (int j = 0; j < 2; ++j) {
      const int columns = static_cast<int>(smaller(larger(shape.columns - 16 * j, 0), 16));
      describe(2 * i + j, rows, 4 * columns);
      describe(6 + j, shape.pairs, 4 * columns);
    }
  }
  __asm__ volatile("ldtilecfg %0" ::"m"(config));
  configured_shape = shape;
}

// While it lives, its thread may have configured tiles. After it they are as whoever else uses AMX in this
// thread (torch's oneDNN does) expects them.
struct TileSession {
  TileSession() = default;
  TileSession(const TileSession&) = delete;
  TileSession& operator=(const TileSession&) = delete;
  FX_MEMBER ~TileSession() {
    if (configured_shape.rows == 0) return;
    __asm__ volatile("tilerelease");
    configured_shape = {0, 0, 0};
  }
};

// C (+)= A · B for Rows x Columns tiles in `steps` of `step` k.
template <int Rows, int Columns>
static void multiply_tiles(float* c, int64_t ldc, bool accumulate, const bf16* a, int64_t lda, const uint32_t* panel,
                           int64_t width, int64_t steps, int64_t step) {
  const int64_t c_bytes = 4 * ldc, a_bytes = 2 * lda, b_bytes = 4 * width;
  float* lower = c + 16 * ldc;
  if (accumulate) {
    tile_load<0>(c, c_bytes);
    if (Columns > 1) tile_load<1>(c + 16, c_bytes);
    if (Rows > 1) tile_load<2>(lower, c_bytes);
    if (Rows > 1 && Columns > 1) tile_load<3>(lower + 16, c_bytes);
  } else {
    tile_zero<0>();
    if (Columns > 1) tile_zero<1>();
    if (Rows > 1) tile_zero<2>();
    if (Rows > 1 && Columns > 1) tile_zero<3>();
  }
  for (; steps > 0; --steps, a += step, panel += step / 2 * width) {
    tile_load<6>(panel, b_bytes);
    tile_load<4>(a, a_bytes);
    tile_multiply<0, 4, 6>();
    if (Columns > 1) {
      tile_load<7>(panel + 16, b_bytes);
      tile_multiply<1, 4, 7>();
    }
    if (Rows > 1) {
      tile_load<5>(a + 16 * lda, a_bytes);
      tile_multiply<2, 5, 6>();
      if (Columns > 1) tile_multiply<3, 5, 7>();
    }
  }
  tile_store<0>(c, c_bytes);
  if (Columns > 1) tile_store<1>(c + 16, c_bytes);
  if (Rows > 1) tile_store<2>(lower, c_bytes);
  if (Rows > 1 && Columns > 1) tile_store<3>(lower + 16, c_bytes);
}

static void multiply_steps(float* c, int64_t ldc, bool accumulate, const bf16* a, int64_t lda, const uint32_t* panel,
                           int64_t width, int64_t rows, int64_t columns, int64_t steps, int64_t step) {
  configure_tiles({static_cast<uint8_t>(rows), static_cast<uint8_t>(columns), static_cast<uint8_t>(step / 2)});
  if (rows > 16)
    return columns > 16 ? multiply_tiles<2, 2>(c, ldc, accumulate, a, lda, panel, width, steps, step)
                        : multiply_tiles<2, 1>(c, ldc, accumulate, a, lda, panel, width, steps, step);
  return columns > 16 ? multiply_tiles<1, 2>(c, ldc, accumulate, a, lda, panel, width, steps, step)
                      : multiply_tiles<1, 1>(c, ldc, accumulate, a, lda, panel, width, steps, step);
}

// How a depth is cut into steps of one configuration, and what is left over.
struct TileSteps {
  int64_t count, step, rest;
};

// Equal steps where k allows, such as 72 as three of 24, and one step too many (80 as four of 20) rather than a
// configuration for the rest.
FX_INLINE TileSteps tile_steps(int64_t k) {
  const int64_t least = divide_up(k, amx_step);
  for (int64_t count = larger(least, 1); count <= least + 1; ++count)
    if (k > 0 && k % (2 * count) == 0) return {count, k / count, 0};
  return {k / amx_step, amx_step, k % amx_step};
}

// The largest depth up to k that needs one configuration only.
FX_INLINE int64_t tile_depth(int64_t k) {
  const TileSteps steps = tile_steps(k);
  return steps.count == 0 ? k : steps.count * steps.step;
}

// The k that are left over from equal steps: a step of their own.
static void multiply_rest(float* c, int64_t ldc, bool accumulate, const bf16* a, int64_t lda, const uint32_t* panel,
                          int64_t width, int64_t rows, int64_t columns, int64_t rest) {
  if (rest % 2 == 0) return multiply_steps(c, ldc, accumulate, a, lda, panel, width, rows, columns, 1, rest);
  // The pair of an odd element would be read beyond the row.
  bf16 padded[amx_block * amx_step];
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < rest; ++i) padded[r * amx_step + i] = a[r * lda + i];
    padded[r * amx_step + rest] = {0};
  }
  multiply_steps(c, ldc, accumulate, padded, amx_step, panel, width, rows, columns, 1, rest + 1);
}

// C[rows, columns] (+)= A[rows, k] · B[k, columns], rows and columns at most amx_block; B are columns of a panel
// of `width`. The sums of one call are one chain of fp32 additions.
static void multiply_block_by_tiles(float* c, int64_t ldc, bool accumulate, const bf16* a, int64_t lda,
                                    const uint32_t* panel, int64_t width, int64_t rows, int64_t columns, int64_t k) {
  const TileSteps steps = tile_steps(k);
  const int64_t whole = steps.count * steps.step;
  if (whole > 0 || k == 0)
    multiply_steps(c, ldc, accumulate, a, lda, panel, width, rows, columns, steps.count, steps.step);
  if (steps.rest > 0)
    multiply_rest(c, ldc, accumulate || whole > 0, a + whole, lda, panel + whole / 2 * width, width, rows, columns,
                  steps.rest);
}

// body(row, column, rows, columns) for all blocks: whole ones first, for what is left over of rows and of columns
// has configurations of its own.
template <class Body>
FX_INLINE void for_tile_blocks(int64_t m, int64_t n, const Body& body) {
  const int64_t row_ends[] = {0, m / amx_block * amx_block, m}, column_ends[] = {0, n / amx_block * amx_block, n};
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 2; ++j)
      for (int64_t row = row_ends[i]; row < row_ends[i + 1]; row += amx_block)
        for (int64_t column = column_ends[j]; column < column_ends[j + 1]; column += amx_block)
          body(row, column, smaller(m - row, amx_block), smaller(n - column, amx_block));
}

// One panel for the GEMM engine: see gemm::multiply_panel. Sums go to the sink through memory; where the sink is
// memory, straight to it.
template <class Isa, class Sink>
static void multiply_panel_by_tiles(const bf16* a, int64_t lda, const uint32_t* panel, int64_t width, int64_t m,
                                    int64_t n, int64_t k, const Sink& sink) {
  if constexpr (requires { sink.matrix(m, n); }) {
    const int64_t whole = tile_depth(k);
    for_tile_blocks(m, n, [&](int64_t row, int64_t column, int64_t rows, int64_t columns) {
      multiply_block_by_tiles(sink.matrix(row, column), sink.stride, false, a + row * lda, lda, panel + column, width,
                              rows, columns, whole);
    });
    if (whole < k)
      for_tile_blocks(m, n, [&](int64_t row, int64_t column, int64_t rows, int64_t columns) {
        multiply_rest(sink.matrix(row, column), sink.stride, true, a + row * lda + whole, lda,
                      panel + whole / 2 * width + column, width, rows, columns, k - whole);
      });
  } else if constexpr (requires(typename Isa::F32(&vectors)[Isa::panel / Isa::lanes]) {
                         sink.whole_row(m, vectors, n);
                       }) {
    alignas(64) float sums[amx_block][Isa::panel];
    for (int64_t row = 0; row < m; row += amx_block) {
      const int64_t rows = smaller(m - row, amx_block);
      for (int64_t column = 0; column < n; column += amx_block)
        multiply_block_by_tiles(sums[0] + column, Isa::panel, false, a + row * lda, lda, panel + column, width, rows,
                                smaller(n - column, amx_block), k);
      for (int64_t r = 0; r < rows; ++r) {
        typename Isa::F32 vectors[Isa::panel / Isa::lanes] = {};
        for (int64_t c = 0; c < n; c += Isa::lanes) vectors[c / Isa::lanes] = Isa::load(&sums[r][c]);
        sink.whole_row(row + r, vectors, n);
      }
    }
  } else {
    alignas(64) float sums[amx_block][amx_block];
    for_tile_blocks(m, n, [&](int64_t row, int64_t column, int64_t rows, int64_t columns) {
      multiply_block_by_tiles(sums[0], amx_block, false, a + row * lda, lda, panel + column, width, rows, columns, k);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; c += Isa::lanes)
          sink(row + r, column + c, Isa::load(&sums[r][c]), static_cast<int>(smaller(columns - c, Isa::lanes)));
    });
  }
}

}  // namespace

}  // namespace fx
