// y = x·Wᵀ where registers are tiles: computed as yᵀ = W·xᵀ. Rows of W are the left operand and are read where
// they lie (those of FP8, decoded by blocks, where a block stays in L2); x is the small side, and is packed.
#pragma once

#include "linear_problem.inl.h"

namespace fx {

template <class Isa, class Problem>
class LinearByTiles {
 public:
  explicit LinearByTiles(const Problem& problem) : p(problem), depth(divide_up(problem.k, 2)) {}

  void run(const Parallel& pool) const {
    const int64_t fitting = packed_bytes / (larger(depth, 1) * static_cast<int64_t>(sizeof(uint32_t)));
    const int64_t at_once = smaller(larger(fitting / most_rows, 1) * most_rows, p.m);
    for (int64_t row = 0; row < p.m; row += at_once) multiply(pool, row, smaller(at_once, p.m - row));
  }

 private:
  static constexpr int64_t unit = 32;           // rows and columns of a block of tiles
  static constexpr int64_t k_block = 512;       // a panel of x, 32 KiB, stays in L1
  static constexpr int64_t most_columns = 256;  // rows of W in a task: 256 KiB of a block of k stay in L2,
  static constexpr int64_t most_rows = 512;     // beside 512 KiB of sums with so many rows of x
  static constexpr int64_t packed_bytes = 8 << 20;

  const Problem& p;
  int64_t depth;  // pairs of k in a panel

  // Packs rows [row, row + rows) of x once for all threads, which then share the product.
  void multiply(const Parallel& pool, int64_t row, int64_t rows) const {
    auto* packed = static_cast<uint32_t*>(
        scratch(Scratch::panel, sizeof(uint32_t) * static_cast<size_t>(depth * round_up(rows, column_unit))));
    const int64_t panels = divide_up(rows, unit), grain = 1 + (16 << 10) / (unit * (p.k + 1));
    parallel_for(pool, panels, grain, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin * unit; r < smaller(end * unit, rows); r += unit)
        pack_panel<Isa>(packed + depth * r, width(rows, r), p.x + (row + r) * p.x_stride, p.x_stride, 1, p.k,
                        smaller(unit, rows - r));
    });

    // Threads share units of rows of W; rows of x only where those are fewer than threads.
    const int64_t units = divide_up(p.n, unit);
    int64_t parts = larger(divide_up(rows, most_rows), smaller(divide_up(pool.threads, units), panels));
    const int64_t part = unit * divide_up(panels, parts);
    parts = divide_up(rows, part);
    parallel_for(pool, units * parts, 1, [&](int64_t begin, int64_t end) {
      [[maybe_unused]] const typename Isa::Session session;
      while (begin < end) {
        const int64_t r = begin / units * part, n = begin % units;
        const int64_t some = smaller(smaller(end - begin, units - n), most_columns / unit);
        block(packed + depth * r, row + r, smaller(part, rows - r), n * unit, smaller(some * unit, p.n - n * unit));
        begin += some;
      }
    });
  }

  static int64_t width(int64_t rows, int64_t r) { return smaller(unit, round_up(rows - r, column_unit)); }

  // Columns [n, n + columns) of rows [row, row + rows) of y; `packed` are the panels of these rows.
  void block(const uint32_t* packed, int64_t row, int64_t rows, int64_t n, int64_t columns) const {
    const int64_t stride = round_up(rows, column_unit) + column_unit;  // no power of two: rows spread over L1's sets
    auto* sums =
        static_cast<float*>(scratch(Scratch::accumulator, sizeof(float) * static_cast<size_t>(columns * stride)));
    int64_t k = 0;
    do {  // once where p.k is 0
      const int64_t some = Isa::block_depth(smaller(k_block, p.k - k));
      const OperandRows<bf16> a = p.template rows_of_weight<Isa>(n, columns, k, some);
      for (int64_t r = 0; r < rows; r += unit) {
        const int64_t wide = width(rows, r);
        const uint32_t* panel = packed + depth * r + k / 2 * wide;
        for (int64_t c = 0; c < columns; c += unit)
          Isa::multiply_block(sums + c * stride + r, stride, k > 0, a.values + c * a.stride, a.stride, panel, wide,
                              smaller(unit, columns - c), smaller(unit, rows - r), some);
      }
      k += some;
    } while (k < p.k);
    finish(sums, stride, row, rows, n, columns);
  }

  // The sums are yᵀ: squares of them are transposed in registers.
  void finish(const float* sums, int64_t stride, int64_t row, int64_t rows, int64_t n, int64_t columns) const {
    constexpr int lanes = Isa::lanes;
    using Y = typename Problem::Output;
    const Epilogue<Y> epilogue = p.epilogue();
    const FinishTo<Isa, Y> to{epilogue, n};
    typename Isa::F32 square[lanes];
    for (int64_t r = 0; r < rows; r += lanes)
      for (int64_t c = 0; c < columns; c += lanes) {
        const int count = static_cast<int>(smaller(lanes, columns - c)),
                  wanted = static_cast<int>(smaller(lanes, rows - r));
        for (int i = 0; i < lanes; ++i) square[i] = i < count ? Isa::load(sums + (c + i) * stride + r) : Isa::zero();
        Isa::transpose(square);
        for (int i = 0; i < wanted; ++i) to(row + r + i, c, square[i], count);
      }
  }
};

}  // namespace fx
