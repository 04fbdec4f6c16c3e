// y = scale · x·Wᵀ + bias for any weight type that the engine reads: chooses the form, blocks, threads.
#pragma once

#include "../engine/dot.inl.h"
#include "../engine/epilogue.inl.h"
#include "../engine/gemm.inl.h"
#include "linear_problem.inl.h"
#include "linear_rows.inl.h"

namespace fx {

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

// How a product is cut: `columns` of W at a time, packed `depth` deep, summed in chains of `chain`.
struct PanelBlocking {
  int64_t columns, depth, chain;
};

template <class Isa, class X>
FX_INLINE PanelBlocking panel_blocking(int64_t k) {
  // What is packed stays in L2 beside the rows that stream past it; more columns mean fewer passes over x.
  constexpr int64_t unit = sizeof(typename Isa::template Panel<X>) / Isa::template k_step<X>, bytes = 1 << 20,
                    most_columns = 128, vector = 64;
  k = larger(k, 1);
  const int64_t fitting = bytes / (unit * k) / Isa::panel * Isa::panel;
  const int64_t columns = larger(smaller(fitting, most_columns), Isa::panel);
  const auto equal_parts = [](int64_t whole, int64_t most) {
    return round_up(divide_up(whole, divide_up(whole, most)), vector);
  };
  const int64_t depth = equal_parts(k, larger(bytes / (unit * columns), vector));
  return {columns, depth, equal_parts(smaller(depth, k), longest_chain<X>)};
}

// sums (+)= x · packed, chain by chain. Chains are packed one after the other.
template <class Isa, class X>
static void multiply_chains(float* sums, int64_t width, const X* x, int64_t x_stride, const void* packed, int64_t rows,
                            int64_t columns, int64_t depth, int64_t chain, bool accumulate) {
  auto* from = static_cast<const char*>(packed);
  for (int64_t k = 0; k == 0 || k < depth; k += chain, accumulate = true) {
    const int64_t count = smaller(depth - k, chain);
    if (accumulate)
      gemm::multiply_panels<Isa>(x + k, x_stride, from, rows, columns, count, AddTo<Isa>{sums, width});
    else
      gemm::multiply_panels<Isa>(x + k, x_stride, from, rows, columns, count, StoreTo<Isa>{sums, width});
    from += gemm::packed_bytes<Isa, X>(count, columns);
  }
}

// Rows [row, row + rows) of columns [column, column + columns): pack a block of k, multiply all rows by it,
// next block. The sums of the last one are finished a tile's rows at a time, while they are in L1.
template <class Isa, class Problem>
static void linear_block(const Problem& p, int64_t row, int64_t rows, int64_t column, int64_t columns,
                         const PanelBlocking& blocking) {
  using X = typename Problem::Operand;
  constexpr int64_t unit = gemm::row_unit<Isa, X>;
  const int64_t width = round_up(columns, column_unit);
  const bool one_block = p.k <= blocking.depth;
  const int64_t kept_rows = one_block ? smaller(rows, unit) : rows;
  const int64_t chains = divide_up(smaller(blocking.depth, larger(p.k, 1)), blocking.chain);
  auto* packed = static_cast<char*>(
      scratch(Scratch::panel, static_cast<size_t>(chains) * gemm::packed_bytes<Isa, X>(blocking.chain, columns)));
  auto* sums =
      static_cast<float*>(scratch(Scratch::accumulator, sizeof(float) * static_cast<size_t>(kept_rows * width)));
  const Epilogue<typename Problem::Output> epilogue = p.epilogue();

  for (int64_t k = 0; k == 0 || k < p.k; k += blocking.depth) {
    const int64_t depth = smaller(p.k - k, blocking.depth);
    char* to = packed;
    for (int64_t i = 0; i < depth; i += blocking.chain) {
      const int64_t count = smaller(depth - i, blocking.chain);
      p.template pack<Isa>(to, column, columns, k + i, count);
      to += gemm::packed_bytes<Isa, X>(count, columns);
    }
    const bool last = p.k - k <= blocking.depth;
    for (int64_t r = 0; r < rows; r += unit) {
      const int64_t count = smaller(rows - r, unit);
      float* c = one_block ? sums : sums + r * width;
      if (last) expect_rows(epilogue, row + r, count, column, columns);
      const OperandRows<X> x = p.template rows_of_x<Isa>(row + r, count, k, depth);
      multiply_chains<Isa>(c, width, x.values, x.stride, packed, count, columns, depth, blocking.chain, k > 0);
      if (last) finish_rows<Isa>(epilogue, c, width, row + r, count, column, columns);
    }
  }
}

// Are rows of the weight operands of the products as they lie?
template <class Isa, class Rows, class X>
constexpr bool takes_rows = __is_same(Rows, const X*) && !gemm::widens_rows<Isa, X>;

// Is it cheaper to turn x and y over than W? In y's place the sums are turned, which are of twice the size, or are
// read and written once more. Many rows are worth packing W for in any case.
template <class Isa, class Problem>
FX_INLINE bool turns_x(const Problem& p) {
  if constexpr (Isa::template tiles<typename Problem::Operand>) return true;
  return p.m <= 512 && (p.m <= column_unit || p.m * (p.k + 2 * p.n) <= p.n * p.k);
}

template <class Isa, class Problem>
static void linear_by_panels(const Problem& p, const Parallel& pool) {
  using X = typename Problem::Operand;
  if constexpr (Isa::template tiles<X> || takes_rows<Isa, decltype(p.weight), X>) {
    if (turns_x<Isa>(p) && (p.weight_stride_k == 1 || p.k <= 1)) return LinearByRows<Isa, Problem>(p).run(pool);
  }
  constexpr int64_t rows_at_once = 2048, fewest_rows = 96;
  const PanelBlocking blocking = panel_blocking<Isa, X>(p.k);

  // Threads share columns; rows only where there are fewer panels than threads.
  const int64_t panels = divide_up(p.n, Isa::panel), together = blocking.columns / Isa::panel;
  const int64_t columns = Isa::panel * larger(smaller(panels / pool.threads, together), 1);
  const int64_t blocks = divide_up(p.n, columns);
  int64_t parts = smaller(divide_up(pool.threads, blocks), p.m / fewest_rows);
  parts = larger(parts, divide_up(p.m, rows_at_once));
  const int64_t rows = round_up(divide_up(p.m, parts), gemm::row_unit<Isa, X>);
  parts = divide_up(p.m, rows);
  parallel_for(pool, blocks * parts, 1, [&](int64_t begin, int64_t end) {
    [[maybe_unused]] const typename Isa::Session session;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task % parts * rows, column = task / parts * columns;
      linear_block<Isa>(p, row, smaller(p.m - row, rows), column, smaller(p.n - column, columns), blocking);
    }
  });
}

// Up to how many rows the dot form is faster than packing, as measured. The sums of short rows cost more
// than the products; and without BF16 products each pass over W decodes it anew. On tiles (not measured) a
// product of up to sixteen rows of x costs what one of a single row does.
template <class Isa, class X, class W>
FX_INLINE int64_t most_dot_rows(int64_t k) {
  constexpr bool decodes = sizeof(W) < sizeof(float) && Isa::template k_step<X> == 1;
  if constexpr (Isa::template tiles<X>) return 4;
  constexpr int64_t most = decodes ? Isa::dot_rows * static_cast<int64_t>(sizeof(W)) : max_dot_rows;
  return smaller(larger(k / 20, 4), most);
}

// Is the dot form faster, as measured? Products by rows of W cost as many as a vector holds, even where x has fewer,
// unless rows can be split between the forms.
template <class Isa, class X, class W>
FX_INLINE bool takes_dots(int64_t m, int64_t k) {
  constexpr int64_t worth_a_vector = 11;
  if (m > most_dot_rows<Isa, X, W>(k)) return false;
  if constexpr (!takes_rows<Isa, const W*, X> || Isa::template tiles<X>) return true;
  if constexpr (interleaves<Isa, X>) return m <= most_rows_as_dots;
  return m % column_unit > 0 && m % column_unit < worth_a_vector;
}

// Returns the name of the form.
template <class Isa, class X, class W>
static const char* run_linear(const LinearProblem<X, W>& p, const Parallel& pool) {
  if (p.m == 0 || p.n == 0) return "empty";
  if (takes_dots<Isa, X, W>(p.m, p.k) && (p.weight_stride_k == 1 || p.k <= 1)) {
    linear_by_dots<Isa>(p, pool);
    return "dot";
  }
  linear_by_panels<Isa>(p, pool);
  return "panel";
}

}  // namespace fx
