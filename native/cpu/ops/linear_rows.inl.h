// y = x·Wᵀ computed as yᵀ = W·xᵀ: rows of W are the left operand and are read where they lie (those of FP8,
// decoded some at a time, into a buffer that stays in the cache; but for tiles, beside the products); x is the small
// side, and is packed.
#pragma once

#include "../engine/gemm.inl.h"
#include "../engine/interleaved.inl.h"
#include "linear_problem.inl.h"

namespace fx {

// The most k that is summed in one chain. For float inputs few, as in BLAS libraries: the rounding error of
// a sum grows with its length, and nothing coarser hides it.
template <class X>
constexpr int64_t longest_chain = sizeof(X) == sizeof(float) ? 192 : INT64_MAX / 8;

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

  const Problem& p;
  int64_t depth;  // of a panel, in steps of k

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

  // Nine to sixteen rows are a panel of their own kind; as the last of more only where chains are long, since their
  // ends cost it more.
  bool interleaved(int64_t rows) const {
    if constexpr (on_tiles || decodes_beside || !interleaves<Isa, X>) return false;
    const bool half = 2 * rows <= interleaved_columns;  // has a tile of its own: see tile.inl.h
    return !half && rows <= interleaved_columns && (p.m <= interleaved_columns || sizeof(X) < sizeof(float));
  }

  void pack(Element* packed, int64_t row, int64_t rows) const {
    const auto* from = p.x + row * p.x_stride;
    if constexpr (!on_tiles && interleaves<Isa, X>) {
      if (interleaved(rows)) return pack_interleaved<Isa, X>(packed, from, p.x_stride, p.k, rows);
    }
    pack_panel<Isa>(packed, round_up(rows, column_unit), from, p.x_stride, 1, p.k, rows);
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
    if (interleaved(rows)) return {columns, deep, 6, smaller(deep, 4 * longest_chain<X>)};
    return {columns, deep, rows <= 3 * column_unit ? 8 : 24, smaller(deep, longest_chain<X>)};
  }

  // Columns [n, n + columns) of rows [row, row + rows) of y; `packed` are the panels of these rows.
  void block(const Blocks& blocks, const Element* packed, int64_t row, int64_t rows, int64_t n, int64_t columns) const {
    const int64_t stride = round_up(rows, column_unit) + column_unit;  // no power of two: rows spread over L1's sets
    auto* sums =
        static_cast<float*>(scratch(Scratch::accumulator, sizeof(float) * static_cast<size_t>(columns * stride)));
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
          for (int64_t r = decodes_beside ? panel : 0; r < rows; r += panel)
            multiply_panel(sums + c * stride + r, stride, k > 0, w, packed + depth * r + k / step * width(rows, r),
                           count, smaller(panel, rows - r), some, r == 0);
          k += some;
        } while (k < end);
      }
    }
    finish(sums, stride, row, rows, n, columns);
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
        multiply_panel(AddTo<Isa>{sums, stride}, w, packed, columns, rows, k, ahead);
      else
        multiply_panel(StoreTo<Isa>{sums, stride}, w, packed, columns, rows, k, ahead);
    }
  }
  template <class Sink>
  void multiply_panel(const Sink& sink, const OperandRows<X>& w, const Element* packed, int64_t columns, int64_t rows,
                      int64_t k, int64_t ahead) const {
    if constexpr (interleaves<Isa, X>) {
      if (interleaved(rows))
        return multiply_interleaved<Isa>(w.values, w.stride, packed, columns, rows, k, sink, ahead);
    }
    gemm::multiply_panel<Isa>(w.values, w.stride, packed, columns, rows, k, sink, ahead);
  }

  // The same with the first panel and rows [column, column + columns) of W, which are decoded meanwhile.
  OperandRows<X> decode_and_multiply(float* sums, int64_t stride, bool accumulate, int64_t column,
                                     const Element* packed, int64_t columns, int64_t rows, int64_t k_first,
                                     int64_t k) const {
    const int64_t first = smaller(panel, rows);
    const bool kept = rows > panel;
    if (accumulate)
      return p.template multiply_codes<Isa>(column, columns, k_first, k, packed, first, kept, AddTo<Isa>{sums, stride});
    return p.template multiply_codes<Isa>(column, columns, k_first, k, packed, first, kept, StoreTo<Isa>{sums, stride});
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
