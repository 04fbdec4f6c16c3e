// y = x·Wᵀ computed as yᵀ = W·xᵀ: rows of W are the left operand and are read where they lie (those of FP8,
// decoded some at a time, into a buffer that stays in the cache; but for tiles, beside the products); x is the small
// side, and is packed.
#pragma once

#include "../engine/dot.inl.h"
#include "../engine/gemm.inl.h"
#include "../engine/interleaved.inl.h"
#include "linear_problem.inl.h"

namespace fx {

// The most k that is summed in one chain. For float inputs few, as in BLAS libraries: the rounding error of
// a sum grows with its length, and nothing coarser hides it.
template <class X>
constexpr int64_t longest_chain = sizeof(X) == sizeof(float) ? 192 : INT64_MAX / 8;

// The most rows of x that are dot products where rows could be an interleaved panel, which has at least two vectors.
constexpr int64_t most_rows_as_dots = 6;

template <class Isa, class Problem>
class LinearByRows {
 public:
  explicit LinearByRows(const Problem& problem) : p(problem), depth(interleaved_depth<Isa, X>(problem.k)) {}

  void run(const Parallel& pool) const {
    const int64_t fitting = packed_bytes / (larger(depth, 1) * static_cast<int64_t>(sizeof(Element)));
    const int64_t at_once = smaller(larger(fitting / most_rows, 1) * most_rows, p.m);
    for (int64_t row = 0; row < p.m; row += at_once) multiply(pool, row, smaller(at_once, p.m - row));
  }

 private:
  using X = typename Problem::Operand;
  using Element = typename Isa::template Panel<X>;
  static constexpr bool on_tiles = Isa::template tiles<X>;
  static constexpr bool decodes_beside = !on_tiles && !__is_same(decltype(Problem::weight), const X*);
  static constexpr int64_t step = Isa::template k_step<X>;
  static constexpr int64_t panel = on_tiles ? 32 : Isa::panel;  // rows of x in a panel
  static constexpr int64_t unit = on_tiles ? 32 : 48;           // rows of W that meet a panel at once
  static constexpr int64_t most_rows = 512;
  static constexpr int64_t packed_bytes = 8 << 20;

  using F32 = typename Isa::F32;

  const Problem& p;
  int64_t depth;  // of a panel, in steps of k

  // Rows of x by the form that multiplies them. Whole vectors of rows are panels. A vector that is filled in part costs
  // what a full one does: so those that are left over, or the last sixteen, are an interleaved panel, where fours are
  // full, and a few are dot products with the rows of W as they lie. One of them beside the interleaved panel is
  // cheap; more are not.
  static constexpr bool splits = !on_tiles && !decodes_beside && interleaves<Isa, X>;
  struct Split {
    int64_t panels, interleaved, dots;
  };
  Split split(int64_t rows) const {
    if constexpr (!splits) return {rows, 0, 0};
    const int64_t left = rows % column_unit;
    if (left > most_rows_as_dots) {
      const int64_t dots = left % interleaved_unit == 1;
      return {rows - left, left - dots, dots};
    }
    const int64_t last = (rows - left) % panel == column_unit ? column_unit : 0;
    return {rows - left - last, last, left};
  }

  // Packs rows [row, row + rows) of x once for all threads, which then share the product.
  void multiply(const Parallel& pool, int64_t row, int64_t rows) const {
    auto* packed = static_cast<Element*>(
        scratch(Scratch::panel, sizeof(Element) * static_cast<size_t>(depth * round_up(rows, column_unit))));
    const int64_t panels = divide_up(rows, panel), grain = 1 + (16 << 10) / (panel * (p.k + 1));
    parallel_for(pool, panels, grain, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin * panel; r < smaller(end * panel, rows); r += panel)
        pack(packed + depth * r, row + r, smaller(panel, rows - r));
    });

    // Threads share units of rows of W; rows of x only where those are fewer than threads.
    const int64_t units = divide_up(p.n, unit);
    int64_t parts = larger(divide_up(rows, most_rows), smaller(divide_up(pool.threads, units), panels));
    const int64_t part = panel * divide_up(panels, parts);
    parts = divide_up(rows, part);
    const Blocks blocks = blocks_for(smaller(part, rows));
    parallel_for(pool, units * parts, 1, [&](int64_t begin, int64_t end) {
      [[maybe_unused]] const typename Isa::Session session;
      while (begin < end) {
        const int64_t r = begin / units * part, n = begin % units;
        const int64_t some = smaller(smaller(end - begin, units - n), larger(blocks.columns / unit, 1));
        block(blocks, packed + depth * r, row + r, smaller(part, rows - r), n * unit,
              smaller(some * unit, p.n - n * unit));
        begin += some;
      }
    });
  }

  void pack(Element* packed, int64_t row, int64_t rows) const {
    const auto* from = p.x + row * p.x_stride;
    const Split form = split(rows);
    if (form.panels > 0)
      pack_panel<Isa>(packed, round_up(form.panels, column_unit), from, p.x_stride, 1, p.k, form.panels);
    if constexpr (splits) {
      if (form.interleaved > 0)
        pack_interleaved<Isa, X>(packed + depth * form.panels, from + form.panels * p.x_stride, p.x_stride, p.k,
                                 form.interleaved);
    }
  }

  static int64_t width(int64_t rows, int64_t r) { return smaller(panel, round_up(rows - r, column_unit)); }

  // How the product with some rows of x is cut: the sums of `columns` rows of W wait in memory for the next `depth`
  // of k. Of those, `together` rows meet all of x at once, `chain` k at a time.
  struct Blocks {
    int64_t columns, depth, together, chain;
  };
  Blocks blocks_for(int64_t rows) const {
    if constexpr (on_tiles)
      return {256, 512, 256, 512};  // a panel of x stays in L1; 256 KiB of W in L2, beside the sums
    const int64_t whole = larger(p.k, 1), line = 64;
    // What is packed of x stays in L2. A narrow panel meets few rows of W, so that these stay in L1.
    const int64_t fitting = (512 << 10) / (round_up(rows, column_unit) * static_cast<int64_t>(sizeof(Element)) / step);
    const int64_t most = larger(fitting / line, 4) * line;
    const int64_t deep = round_up(divide_up(whole, divide_up(whole, most)), line);
    const int64_t columns = whole <= deep ? unit : 5 * unit;
    // An interleaved panel sums in four chains at once.
    if (const Split form = split(rows); form.panels == 0)
      return {columns, deep, form.interleaved == interleaved_columns ? 6 : 24, smaller(deep, 4 * longest_chain<X>)};
    return {columns, deep, rows <= 3 * column_unit ? 8 : 24, smaller(deep, longest_chain<X>)};
  }

  // Columns [n, n + columns) of rows [row, row + rows) of y; `packed` are the panels of these rows.
  void block(const Blocks& blocks, const Element* packed, int64_t row, int64_t rows, int64_t n, int64_t columns) const {
    const Split form = split(rows);
    const int64_t stride = round_up(rows, column_unit) + column_unit;  // no power of two: rows spread over L1's sets
    auto* sums =
        static_cast<float*>(scratch(Scratch::accumulator, sizeof(float) * static_cast<size_t>(columns * stride)));
    auto* dots = static_cast<F32*>(scratch(Scratch::user0, sizeof(F32) * static_cast<size_t>(form.dots * columns)));
    for (int64_t k0 = 0; k0 == 0 || k0 < p.k; k0 += blocks.depth) {
      const int64_t end = smaller(k0 + blocks.depth, p.k);
      for (int64_t c = 0; c < columns; c += blocks.together) {
        const int64_t count = smaller(blocks.together, columns - c);
        int64_t k = k0;
        do {
          const int64_t some = chain(smaller(blocks.chain, end - k));
          OperandRows<X> w;
          if constexpr (decodes_beside)
            w = decode_and_multiply(sums + c * stride, stride, k > 0, n + c, packed + k / step * width(rows, 0), count,
                                    rows, k, some);
          else
            w = p.template rows_of_weight<Isa>(n + c, count, k, some);
          for (int64_t r = decodes_beside ? panel : 0; r < form.panels; r += panel)
            multiply_panel(sums + c * stride + r, stride, k > 0, w,
                           packed + depth * r + k / step * width(form.panels, r), count,
                           smaller(panel, form.panels - r), some, r == 0);
          if constexpr (splits)
            multiply_last_rows(form, row, sums + c * stride, stride, DotSums<F32>{dots + c, columns, 1}, k > 0, w,
                               packed + depth * form.panels, count, k, some);
          k += some;
        } while (k < end);
      }
    }
    finish(sums, stride, row, rows - form.dots, n, columns);
    finish_dots(dots, row + rows - form.dots, form.dots, n, columns);
  }

  static int64_t chain(int64_t k) {
    if constexpr (on_tiles)
      return Isa::block_depth(k);
    else
      return k;
  }

  // sums[columns][rows] (+)= W · panel
  void multiply_panel(float* sums, int64_t stride, bool accumulate, const OperandRows<X>& w, const Element* packed,
                      int64_t columns, int64_t rows, int64_t k, bool first) const {
    if constexpr (on_tiles) {
      for (int64_t c = 0; c < columns; c += unit)
        Isa::multiply_block(sums + c * stride, stride, accumulate, w.values + c * w.stride, w.stride, packed,
                            round_up(rows, column_unit), smaller(unit, columns - c), rows, k);
    } else {
      const int64_t ahead = first ? w.ahead : 0;
      if (accumulate)
        gemm::multiply_panel<Isa>(w.values, w.stride, packed, columns, rows, k, AddTo<Isa>{sums, stride}, ahead);
      else
        gemm::multiply_panel<Isa>(w.values, w.stride, packed, columns, rows, k, StoreTo<Isa>{sums, stride}, ahead);
    }
  }

  // The same of the rows of x that no panel holds, for the `some` k from `k` on. Rows of x behind those of panels
  // begin at `packed`; the sums of dot products go to `dots`.
  void multiply_last_rows(const Split& form, int64_t row, float* sums, int64_t stride, DotSums<F32> dots,
                          bool accumulate, const OperandRows<X>& w, const Element* packed, int64_t columns, int64_t k,
                          int64_t some) const {
    const X* x = p.x + (row + form.panels + form.interleaved) * p.x_stride + k;
    if (form.interleaved > 0) {
      const bool beside = form.dots == 1;
      const ColumnBeside<F32, X> one{beside ? x : nullptr, dots.at, accumulate};
      const int64_t ahead = form.panels == 0 ? w.ahead : 0;
      packed += k / step * round_up(form.interleaved, interleaved_unit);
      sums += form.panels;
      if (accumulate)
        multiply_interleaved<Isa>(w.values, w.stride, packed, columns, form.interleaved, some, AddTo<Isa>{sums, stride},
                                  ahead, one);
      else
        multiply_interleaved<Isa>(w.values, w.stride, packed, columns, form.interleaved, some,
                                  StoreTo<Isa>{sums, stride}, ahead, one);
      if (beside) return;
    }
    constexpr int64_t group = Isa::dot_columns;
    if (form.dots == 0) return;
    for (int64_t c = 0; c < columns; ++c) {
      const X* from = w.values + c * w.stride;
      const DotSums<F32> to{dots.at + c * dots.column, dots.row, dots.column};
      if (c + group <= columns) {
        dot_all_rows<Isa, group, dot_rows<Isa, X>>(to, x, p.x_stride, from, w.stride, form.dots, some, 0, accumulate);
        c += group - 1;
      } else {
        dot_all_rows<Isa, 1, 1>(to, x, p.x_stride, from, w.stride, form.dots, some, 0, accumulate);
      }
    }
  }

  // The same as multiply_panel with the first panel and rows [column, column + columns) of W, which are decoded
  // meanwhile.
  OperandRows<X> decode_and_multiply(float* sums, int64_t stride, bool accumulate, int64_t column,
                                     const Element* packed, int64_t columns, int64_t rows, int64_t k_first,
                                     int64_t k) const {
    const int64_t first = smaller(panel, rows);
    const bool kept = rows > panel;
    if (accumulate)
      return p.template multiply_codes<Isa>(column, columns, k_first, k, packed, first, kept, AddTo<Isa>{sums, stride});
    return p.template multiply_codes<Isa>(column, columns, k_first, k, packed, first, kept, StoreTo<Isa>{sums, stride});
  }

  // Lanes of dot products are added: those of row r and column c are at r · columns + c.
  void finish_dots(const F32* dots, int64_t row, int64_t rows, int64_t n, int64_t columns) const {
    constexpr int lanes = Isa::lanes;
    const Epilogue<typename Problem::Output> epilogue = p.epilogue();
    const FinishTo<Isa, typename Problem::Output> to{epilogue, n};
    for (int64_t r = 0; r < rows; ++r, dots += columns)
      for (int64_t c = 0; c < columns; c += lanes) {
        const int count = static_cast<int>(smaller(lanes, columns - c));
        F32 each[lanes];
        for (int i = 0; i < lanes; ++i) each[i] = i < count ? dots[c + i] : Isa::zero();
        to(row + r, c, Isa::sum_each(each), count);
      }
  }

  // The sums are yᵀ: squares of them are transposed in registers.
  void finish(const float* sums, int64_t stride, int64_t row, int64_t rows, int64_t n, int64_t columns) const {
    constexpr int lanes = Isa::lanes;
    using Y = typename Problem::Output;
    const Epilogue<Y> epilogue = p.epilogue();
    const FinishTo<Isa, Y> to{epilogue, n};
    const bool at_most_bias = epilogue.at_most_bias();
    typename Isa::F32 square[lanes];
    for (int64_t r = 0; r < rows; r += lanes)
      for (int64_t c = 0; c < columns; c += lanes) {
        const int count = static_cast<int>(smaller(lanes, columns - c)),
                  wanted = static_cast<int>(smaller(lanes, rows - r));
        const float* from = sums + c * stride + r;
        if (count == lanes && wanted == lanes && at_most_bias) {  // the most frequent, without questions for each row
          FX_UNROLL
          for (int i = 0; i < lanes; ++i) square[i] = Isa::load(from + i * stride);
          Isa::transpose(square);
          Y* y = epilogue.y + (row + r) * epilogue.stride + n + c;
          if (epilogue.bias != nullptr) {
            const typename Isa::F32 bias = Isa::load(epilogue.bias + n + c);
            FX_UNROLL
            for (int i = 0; i < lanes; ++i) square[i] += bias;
          }
          FX_UNROLL
          for (int i = 0; i < lanes; ++i) Isa::store(y + i * epilogue.stride, square[i]);
          continue;
        }
        for (int i = 0; i < lanes; ++i) square[i] = i < count ? Isa::load(from + i * stride) : Isa::zero();
        Isa::transpose(square);
        for (int i = 0; i < wanted; ++i) to(row + r + i, c, square[i], count);
      }
  }
};

}  // namespace fx
