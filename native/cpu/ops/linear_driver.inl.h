// y = scale · x·Wᵀ + bias for any weight type that the engine reads: chooses the form, blocks, threads.
#pragma once

#include "../engine/dot.inl.h"
#include "../engine/epilogue.inl.h"
#include "../engine/gemm.inl.h"

namespace fx {

template <class X, class W>
struct LinearProblem {
  const X* x;
  const W* weight;
  const X* bias;         // or null
  const float* scale;    // or null
  int64_t scale_stride;  // 0 or 1
  X* y;                  // [m, n], row-major
  int64_t m, n, k;
  int64_t x_stride;
  int64_t weight_stride_n, weight_stride_k;
  Activation activation = Activation::none;
  RowOperand<X> multiply = {}, residual = {};

  FX_MEMBER Epilogue<X> epilogue() const { return {y, n, bias, scale, scale_stride, activation, multiply, residual}; }
};

template <class Isa, class X, class W>
static void linear_by_dots(const LinearProblem<X, W>& p, const Parallel& pool) {
  constexpr int64_t unit = Isa::lanes, bytes_worth_a_thread = 64 << 10;
  const int64_t grain = 1 + bytes_worth_a_thread / (unit * (p.k + 1) * static_cast<int64_t>(sizeof(W)));
  const Epilogue<X> epilogue = p.epilogue();
  parallel_for(pool, divide_up(p.n, unit), grain, [&](int64_t begin, int64_t end) {
    const int64_t n0 = begin * unit, columns = smaller(end * unit, p.n) - n0;
    dot_columns<Isa>(p.x, p.x_stride, p.weight + n0 * p.weight_stride_n, p.weight_stride_n, p.m, columns, p.k,
                     FinishTo<Isa, X>{epilogue, n0});
  });
}

// Rows [row, row + rows) of columns [column, column + columns): pack a block of k, multiply all rows by it,
// next block. The sums of the last one are finished a tile's rows at a time, while they are in L1.
template <class Isa, class X, class W>
static void linear_block(const LinearProblem<X, W>& p, int64_t row, int64_t rows, int64_t column, int64_t columns,
                         int64_t k_block) {
  const int64_t width = round_up(columns, column_unit);
  const bool one_block = p.k <= k_block;
  const int64_t kept_rows = one_block ? smaller(rows, Isa::tile_rows) : rows;
  void* packed = scratch(Scratch::panel, gemm::packed_bytes<Isa, X>(smaller(k_block, p.k), columns));
  auto* sums =
      static_cast<float*>(scratch(Scratch::accumulator, sizeof(float) * static_cast<size_t>(kept_rows * width)));
  const Epilogue<X> epilogue = p.epilogue();

  for (int64_t k = 0; k == 0 || k < p.k; k += k_block) {
    const int64_t depth = smaller(p.k - k, k_block);
    const X* x = p.x + row * p.x_stride + k;
    const W* weight = p.weight + column * p.weight_stride_n + k * p.weight_stride_k;
    gemm::pack<Isa, X>(packed, weight, p.weight_stride_n, p.weight_stride_k, depth, columns);
    const bool last = p.k - k <= k_block;
    const int64_t step = last ? Isa::tile_rows : rows;
    for (int64_t r = 0; r < rows; r += step) {
      const int64_t count = smaller(rows - r, step);
      float* to = one_block ? sums : sums + r * width;
      if (k == 0)
        gemm::multiply_panels<Isa>(x + r * p.x_stride, p.x_stride, packed, count, columns, depth,
                                   StoreTo<Isa>{to, width});
      else
        gemm::multiply_panels<Isa>(x + r * p.x_stride, p.x_stride, packed, count, columns, depth,
                                   AddTo<Isa>{to, width});
      if (last) finish_rows<Isa>(epilogue, to, width, row + r, count, column, columns);
    }
  }
}

// The most k that one panel holds: some panels share L2, a tile's rows L1. For float inputs less, as BLAS
// libraries do: the rounding error of a sum grows with its length, and nothing coarser hides it.
template <class Isa, class X>
constexpr int64_t deepest_panel() {
  using Element = typename Isa::template Panel<X>;
  constexpr int64_t panel_bytes = 128 << 10, rows_bytes = 24 << 10, step = Isa::template k_step<X>;
  constexpr int64_t by_panel = panel_bytes / (Isa::panel * static_cast<int64_t>(sizeof(Element))) * step;
  constexpr int64_t by_rows = rows_bytes / (Isa::tile_rows * static_cast<int64_t>(sizeof(Element))) * step;
  return sizeof(X) == sizeof(float) ? 192 : smaller(by_panel, by_rows);
}

template <class Isa, class X, class W>
static void linear_by_panels(const LinearProblem<X, W>& p, const Parallel& pool) {
  constexpr int64_t deepest = deepest_panel<Isa, X>(), rows_at_once = 2048, fewest_rows = 96, most_columns = 256;
  // Equal blocks of k, a multiple of every vector.
  const int64_t k_block = round_up(divide_up(larger(p.k, 1), divide_up(larger(p.k, 1), deepest)), 64);

  // Threads share columns; rows only where there are fewer panels than threads.
  const int64_t panels = divide_up(p.n, Isa::panel), together = most_columns / Isa::panel;
  const int64_t columns = Isa::panel * larger(smaller(panels / pool.threads, together), 1);
  const int64_t blocks = divide_up(p.n, columns);
  int64_t parts = smaller(divide_up(pool.threads, blocks), p.m / fewest_rows);
  parts = larger(parts, divide_up(p.m, rows_at_once));
  const int64_t rows = round_up(divide_up(p.m, parts), Isa::tile_rows);
  parts = divide_up(p.m, rows);
  parallel_for(pool, blocks * parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task % parts * rows, column = task / parts * columns;
      linear_block<Isa>(p, row, smaller(p.m - row, rows), column, smaller(p.n - column, columns), k_block);
    }
  });
}

// Up to how many rows the dot form is faster than packing, as measured. The sums of short rows cost more
// than the products; and without BF16 products each pass over W decodes it anew.
template <class Isa, class X, class W>
FX_INLINE int64_t most_dot_rows(int64_t k) {
  constexpr bool decodes = sizeof(W) < sizeof(float) && Isa::template k_step<X> == 1;
  constexpr int64_t most = decodes ? Isa::dot_rows * static_cast<int64_t>(sizeof(W)) : max_dot_rows;
  return smaller(larger(k / 20, 4), most);
}

// Returns the name of the form.
template <class Isa, class X, class W>
static const char* run_linear(const LinearProblem<X, W>& p, const Parallel& pool) {
  if (p.m == 0 || p.n == 0) return "empty";
  if (p.m <= most_dot_rows<Isa, X, W>(p.k) && (p.weight_stride_k == 1 || p.k <= 1)) {
    linear_by_dots<Isa>(p, pool);
    return "dot";
  }
  linear_by_panels<Isa>(p, pool);
  return "panel";
}

}  // namespace fx
