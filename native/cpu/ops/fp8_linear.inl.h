// `fp8_linear` for one ISA: the forms of linear_driver.inl.h, over a weight that is decoded on the way.
//
// A scale of the weight's rows multiplies the sums. One that varies along k multiplies the weight as it is
// decoded, or, in the dot form of bf16, the rows of x, where many columns share it.
#pragma once

#include "fp8_decode.inl.h"
#include "fp8_rows.inl.h"
#include "linear_driver.inl.h"

namespace fx {

// What the products take for x of this type: bf16 only where they have instructions for it.
template <class Isa, class X>
struct ProductOf {
  using type = float;
};
template <class Isa>
  requires(Isa::template k_step<bf16> == 2)
struct ProductOf<Isa, bf16> {
  using type = bf16;
};

// Can the products take codes of this format as they are?
template <class W>
constexpr bool is_ofp8 = false;
template <>
constexpr bool is_ofp8<e4m3> = true;
template <>
constexpr bool is_ofp8<e5m2> = true;
template <class Isa, class D, class W>
constexpr bool decodes_in_products = is_ofp8<W> && Isa::template k_step<D> == Isa::template k_step<W>;

template <class X, class W>
struct Fp8Problem : LinearProblem<X, W> {
  WeightScale weight_scale = {};  // where it varies along k; else `scale` and `scale_stride` have it

  template <class Isa>
  FX_MEMBER void pack(void* packed, int64_t column, int64_t columns, int64_t k, int64_t depth) const {
    using D = typename ProductOf<Isa, X>::type;
    const WeightPart<W> part{this->weight, this->weight_stride_n, this->weight_stride_k, column, k, columns, depth, 0};
    if constexpr (decodes_in_products<Isa, D, W>) {
      if (weight_scale.values == nullptr) {
        gemm::pack<Isa, X>(packed, part.at(0, 0), part.stride_n, part.stride_k, depth, columns);
        return;
      }
    }
    pack_decoded<Isa, D>(packed, part);
  }

  template <class Isa>
  FX_MEMBER OperandRows<X> rows_of_weight(int64_t row, int64_t rows, int64_t k, int64_t depth) const {
    const int64_t stride = round_up(depth, 64) + 32;  // an odd number of cache lines: rows spread over L1's sets
    auto* decoded = static_cast<X*>(scratch(Scratch::activations, sizeof(X) * static_cast<size_t>(rows * stride)));
    for (int64_t r = 0; r < rows; ++r)
      decode_line<Isa>(decoded + r * stride, this->weight + (row + r) * this->weight_stride_n + k, depth,
                       scales_along_k(weight_scale, row + r), k);
    return {decoded, stride};
  }

  // Codes of k in [k_first, k_first + depth) of rows [row, row + rows) times a panel of `columns` rows of x. Returns
  // those rows of the weight decoded, if they are kept.
  template <class Isa, class Sink>
  FX_MEMBER OperandRows<X> multiply_codes(int64_t row, int64_t rows, int64_t k_first, int64_t depth,
                                          const typename Isa::template Panel<X>* panel, int64_t columns, bool kept,
                                          const Sink& sink) const {
    const DecodedRows decoded = decoded_rows<Isa, W>(rows, depth, kept);
    multiply_panel_by_codes<Isa>(this->weight + row * this->weight_stride_n + k_first, this->weight_stride_n, decoded,
                                 panel, rows, columns, depth, sink);
    return {decoded.values, decoded.stride};
  }

  template <class Isa, class D>
  void pack_decoded(void* packed, const WeightPart<W>& part) const {
    constexpr int64_t at_once = 64, step = Isa::template k_step<D>;
    D buffer[Isa::panel * at_once];
    auto* panel = static_cast<typename Isa::template Panel<D>*>(packed);
    for (int64_t n0 = 0; n0 < part.columns; n0 += Isa::panel) {
      const int64_t width = panel_width<Isa>(part.columns, n0), columns = smaller(part.columns - n0, width);
      for (int64_t k0 = 0; k0 < part.depth; k0 += at_once) {
        const int64_t depth = smaller(part.depth - k0, at_once);
        const WeightPart<W> piece{part.codes,  part.stride_n, part.stride_k, part.n + n0,
                                  part.k + k0, columns,       depth,         2 * at_once};
        const DecodedPart<D> decoded = decode_part<Isa>(buffer, piece, weight_scale);
        pack_panel<Isa>(panel + k0 / step * width, width, decoded.values, decoded.stride_n, decoded.stride_k, depth,
                        columns);
      }
      panel += panel_depth<Isa, D>(part.depth) * width;
    }
  }
};

// Can rows of codes be decoded beside their products, as fp8_rows.inl.h does it?
template <class Isa, class X>
constexpr bool decodes_beside_products =
    __is_same(X, bf16) && __is_same(X, typename ProductOf<Isa, X>::type) && !Isa::template tiles<X>;

// Is that faster, as measured, and small enough a copy of x? Such products cost as many rows of x as fill vectors.
template <class X, class W>
FX_INLINE bool takes_rows_of_codes(const Fp8Problem<X, W>& p) {
  constexpr int64_t most_rows = 512, most_bytes = 3 << 20;
  const int64_t packed = round_up(p.m, column_unit), bytes = packed * p.k * static_cast<int64_t>(sizeof(X));
  return p.weight_scale.values == nullptr && p.m <= most_rows && bytes <= most_bytes && 8 * (packed - p.m) <= p.m;
}

// Up to how many rows the dot form is taken; see most_dot_rows.
template <class Isa, class X, class W>
FX_INLINE int64_t most_fp8_dot_rows(int64_t k) {
  return sizeof(X) == sizeof(float) ? max_dot_rows : most_dot_rows<Isa, X, W>(k);
}

// Rows of x as the dot form takes them: D(x[r, k] · scale[k] / largest). Returns `largest`, the size of the
// greatest scale, so that nothing overflows on the way.
template <class Isa, class D, class X>
static float scaled_rows(D* to, const X* x, int64_t x_stride, int64_t m, int64_t k, const ScaleLine& scale) {
  constexpr int lanes = Isa::lanes;
  const int64_t block = scale.stride == 0 ? larger(k, 1) : scale.block, blocks = divide_up(k, block);
  float largest = 0.0f;
  for (int64_t b = 0; scale.values != nullptr && b < blocks; ++b) {
    const float size = __builtin_fabsf(scale.values[b * scale.stride]);
    largest = size > largest ? size : largest;
  }
  const float unit = largest > 0.0f ? 1.0f / largest : 1.0f;
  for (int64_t r = 0; r < m; ++r, x += x_stride, to += k) {
    for (int64_t b = 0; b < blocks; b += block == 1 ? lanes : 1) {
      const int64_t first = b * block, end = smaller(block == 1 ? first + lanes : first + block, k);
      const bool each = block == 1 && scale.stride == 1;
      const typename Isa::F32 shared =
          Isa::splat(unit) * Isa::splat(scale.values == nullptr || each ? 1.0f : scale.values[b * scale.stride]);
      int64_t i = first;
      if (!each)
        for (; i + lanes <= end; i += lanes) Isa::store(to + i, Isa::load(x + i) * shared);
      for (; i < end; i += lanes) {
        const int count = static_cast<int>(smaller(end - i, lanes));
        const typename Isa::F32 factor =
            each && scale.values != nullptr ? shared * Isa::load(scale.values + i, count) : shared;
        Isa::store(to + i, Isa::load(x + i, count) * factor, count);
      }
    }
  }
  return largest > 0.0f ? largest : 1.0f;
}

// Columns [n0, n0 + columns) in the dot form, the weight decoded some rows at a time.
template <class Isa, class D, class X, class W, class Sink>
static void dot_decoded(const Fp8Problem<X, W>& p, const D* x, int64_t x_stride, int64_t n0, int64_t columns,
                        const Sink& sink) {
  constexpr int lanes = Isa::lanes, group = Isa::dot_columns;
  constexpr int64_t at_once = 4096 / sizeof(D);
  D buffer[group * at_once];
  typename Isa::F32 sums[max_dot_rows][lanes];
  for (int64_t c0 = 0; c0 < columns; c0 += lanes) {
    const int64_t valid = smaller(columns - c0, lanes);
    for (int64_t k = 0; k == 0 || k < p.k; k += at_once) {
      const int64_t depth = smaller(p.k - k, at_once);
      for (int c = 0; c < lanes; c += group) {
        const int64_t rows = smaller(larger(valid - c, 0), group);
        for (int64_t i = rows * depth; i < group * depth; ++i) buffer[i] = D{};
        const WeightPart<W> part{p.weight, p.weight_stride_n,        1, n0 + c0 + c, k, rows,
                                 depth,    group * p.weight_stride_n};
        decode_part<Isa>(buffer, part, p.weight_scale);
        dot_all_rows<Isa, group, dot_rows<Isa, D>>(DotSums<typename Isa::F32>{&sums[0][c], lanes, 1}, x + k, x_stride,
                                                   buffer, depth, p.m, depth, 0, k > 0);
      }
    }
    for (int64_t r = 0; r < p.m; ++r) sink(r, c0, Isa::sum_each(sums[r]), static_cast<int>(valid));
  }
}

template <class Isa, class X, class W>
static void fp8_by_dots(const Fp8Problem<X, W>& p, const Parallel& pool) {
  using D = typename ProductOf<Isa, X>::type;
  constexpr int64_t unit = Isa::lanes, bytes_worth_a_thread = 64 << 10;
  constexpr bool as_it_is = sizeof(X) == sizeof(D);  // x is what the products take already
  const WeightScale& s = p.weight_scale;
  const bool scales_x = s.values != nullptr && sizeof(D) < sizeof(float) && (s.stride_n == 0 || s.block_n % unit == 0);
  // The sums of float products have to be short: those of what is decoded first are.
  const bool decodes_first = sizeof(X) == sizeof(float) || (s.values != nullptr && !scales_x);
  const int64_t grain = 1 + bytes_worth_a_thread / (unit * (p.k + 1));
  parallel_for(pool, divide_up(p.n, unit), grain, [&](int64_t begin, int64_t end) {
    // columns that share their scales
    const int64_t together = scales_x && s.stride_n != 0 ? s.block_n / unit : end;
    for (int64_t next = 0; begin < end; begin = next) {
      next = smaller((begin / together + 1) * together, end);
      const int64_t n0 = begin * unit, columns = smaller(next * unit, p.n) - n0;
      Epilogue<X> epilogue = p.epilogue();
      Fp8Problem<X, W> rest = p;
      const D* x = reinterpret_cast<const D*>(p.x);
      int64_t x_stride = p.x_stride;
      float largest = 1.0f;
      if (scales_x || !as_it_is) {
        auto* rows = static_cast<D*>(scratch(Scratch::activations, sizeof(D) * static_cast<size_t>(p.m * p.k)));
        largest = scaled_rows<Isa>(rows, p.x, p.x_stride, p.m, p.k,
                                   scales_x ? scales_along_k(s, n0) : ScaleLine{nullptr, 0, 1});
        x = rows;
        x_stride = p.k;
      }
      if (scales_x) {
        epilogue.scale = &largest;
        epilogue.scale_stride = 0;
        rest.weight_scale = {};
      }
      const FinishTo<Isa, X> finish{epilogue, n0};
      if constexpr (decodes_in_products<Isa, D, W>) {
        if (!decodes_first) {
          dot_columns<Isa>(x, x_stride, p.weight + n0 * p.weight_stride_n, p.weight_stride_n, p.m, columns, p.k,
                           finish);
          continue;
        }
      }
      dot_decoded<Isa>(rest, x, x_stride, n0, columns, finish);
    }
  });
}

template <class Isa, class X, class W>
static const char* fp8_linear_of(const Fp8LinearArgs& args, const Parallel& pool) {
  const bool of_rows = args.scale.of_rows();
  const Fp8Problem<X, W> problem{
      {
          static_cast<const X*>(args.x),
          static_cast<const W*>(args.weight),
          static_cast<const X*>(args.bias),
          of_rows ? args.scale.values : nullptr,
          of_rows ? args.scale.stride_n : 0,
          static_cast<X*>(args.out),
          args.m,
          args.n,
          args.k,
          args.x_stride,
          args.weight_stride_n,
          args.weight_stride_k,
      },
      of_rows ? WeightScale{} : args.scale,
  };
  if (args.m == 0 || args.n == 0) return "empty";
  const bool contiguous = args.weight_stride_k == 1 || args.k <= 1;
  if constexpr (decodes_beside_products<Isa, X>) {
    if (contiguous && takes_rows_of_codes(problem)) {
      LinearByRows<Isa, Fp8Problem<X, W>>(problem).run(pool);
      return "panel";
    }
  }
  if (contiguous && args.m <= most_fp8_dot_rows<Isa, X, W>(args.k)) {
    fp8_by_dots<Isa>(problem, pool);
    return "dot";
  }
  linear_by_panels<Isa>(problem, pool);
  return "panel";
}

template <class Isa, class X>
static const char* fp8_linear_of_format(const Fp8LinearArgs& args, const Parallel& pool) {
  switch (args.weight_dtype) {
    case Dtype::float8_e4m3fn:
      return fp8_linear_of<Isa, X, e4m3>(args, pool);
    case Dtype::float8_e5m2:
      return fp8_linear_of<Isa, X, e5m2>(args, pool);
    case Dtype::float8_e4m3fnuz:
      return fp8_linear_of<Isa, X, e4m3fnuz>(args, pool);
    default:
      return fp8_linear_of<Isa, X, e5m2fnuz>(args, pool);
  }
}

template <class Isa>
static const char* fp8_linear_kernel(const Fp8LinearArgs& args, const Parallel& pool) {
  switch (args.dtype) {
    case Dtype::bfloat16:
      return fp8_linear_of_format<Isa, bf16>(args, pool);
    case Dtype::float16:
      return fp8_linear_of_format<Isa, f16>(args, pool);
    default:
      return fp8_linear_of_format<Isa, float>(args, pool);
  }
}

}  // namespace fx
