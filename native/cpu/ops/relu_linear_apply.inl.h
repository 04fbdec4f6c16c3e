// The second pass of `relu_linear_attention`: queries times the summary, divided by their normaliser on the way out.
#pragma once

#include "outer_sum.inl.h"
#include "relu_linear_plan.inl.h"
#include "workspace.inl.h"

namespace fx {

// Rows are divided by their normaliser: bfloat16 results, which do not show the difference, by way of its
// reciprocal.
template <class T, class Isa>
FX_INLINE typename Isa::F32 divisor(typename Isa::F32 norm) {
  return sizeof(T) < sizeof(float) ? Isa::splat(1.0f) / norm : norm;
}
template <class T, class Isa>
FX_INLINE typename Isa::F32 divided(typename Isa::F32 sums, typename Isa::F32 by) {
  return sizeof(T) < sizeof(float) ? sums * by : sums / by;
}

// Sums of a tile, divided by the normaliser, in the order and type of the result: rows are tokens ...
template <class Isa, class T>
struct DivideRows {
  T* out;
  int64_t stride;
  const float* norm;
  const float* earlier;  // sums of the dimensions before, or null
  int64_t earlier_stride;

  FX_MEMBER void operator()(int64_t row, int64_t column, typename Isa::F32 sums, int count) const {
    if (earlier != nullptr) sums = sums + Isa::load(earlier + row * earlier_stride + column);
    sums = divided<T, Isa>(sums, Isa::splat(norm[row]));
    T* to = out + row * stride + column;
    if (count == Isa::lanes)
      Isa::store(to, sums);
    else
      Isa::store(to, sums, count);
  }
};

// ... or columns are.
template <class Isa, class T>
struct DivideColumns {
  T* out;
  int64_t stride;
  const float* norm;
  const float* earlier;
  int64_t earlier_stride;

  FX_MEMBER void operator()(int64_t row, int64_t column, typename Isa::F32 sums, int count) const {
    if (earlier != nullptr) sums = sums + Isa::load(earlier + row * earlier_stride + column);
    sums = divided<T, Isa>(sums, Isa::load(norm + column));
    T* to = out + row * stride + column;
    if (count == Isa::lanes)
      Isa::store(to, sums);
    else
      Isa::store(to, sums, count);
  }
};

// T: the type of the result.
template <class Isa, class T>
class ReluLinearApply {
 public:
  ReluLinearApply(const ReluLinearPlan<Isa>& cut, const float* turn_tables, const float* packed, const float* combined)
      : plan(cut), args(cut.args), turns(turn_tables), applied(packed), summaries(combined) {}

  // One chunk of some heads.
  void run(int64_t first_head, int64_t heads, int64_t index) const {
    float *queries = nullptr, *norm = nullptr, *earlier = nullptr, *turned_queries = nullptr;
    lay_out(Scratch::user1, [&](Workspace& space) {
      queries = space.take<float>(larger(apply_block * plan.width, args.dim * Isa::panel));
      norm = space.take<float>(larger(apply_block, Isa::panel));
      earlier = space.take<float>(leading() > 0 ? larger(apply_block, args.dim_v) * Isa::panel : 0);
      turned_queries = space.take<float>(plan.turned() && plan.channel_major ? Isa::panel * plan.width : 0);
    });
    const int64_t first = index * plan.chunk, last = smaller(first + plan.chunk, args.tokens);
    const int64_t step = plan.channel_major ? Isa::panel : apply_block;
    for (int64_t token = first; token < last; token += step) {
      const int64_t count = smaller(step, last - token);
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t head = first_head + h;
        Ahead ahead;
        plan.with_next(first_head, heads, h, token, step, last, [&](int64_t next, int64_t at, int64_t tokens) {
          ahead.add(plan.tokens_of(args.query, next, at, false), tokens, args.dim);
          if (args.norm_query.data != nullptr)
            ahead.add(plan.tokens_of(args.norm_query, next, at, false), tokens, args.dim);
        });
        T* out = static_cast<T*>(args.out) + head / args.heads * args.out_strides[0] +
                 head % args.heads * args.out_strides[1] + token * args.out_strides[2];
        const float* own = summaries + head * plan.chunks * plan.summary_size;
        const float* key_sum = own + args.dim * args.dim_v;
        const float* turn = plan.turned() ? plan.turns_of(turns, head, token) : nullptr;
        if (plan.channel_major)
          apply_columns(out, head, token, count, queries, turned_queries, norm, earlier, turn, own, key_sum, ahead);
        else
          apply_rows(out, head, token, count, queries, norm, earlier, turn, applied + head * plan.applied_size, key_sum,
                     ahead);
      }
    }
  }

 private:
  using F32 = typename Isa::F32;
  static constexpr int lanes = Isa::lanes;
  static constexpr int64_t dim_block = 128;
  static constexpr int64_t some_rows = 2 * Isa::tile_rows, some_lines = 64;
  static constexpr int64_t apply_block = 128;  // queries as fp32 beside the summary in L2

  const ReluLinearPlan<Isa>& plan;
  const ReluLinearAttentionArgs& args;
  const float *turns, *applied, *summaries;  // [heads][applied_size], [heads][chunks][summary_size]

  // out[token][e]: queries are the rows, the summary is the packed side.
  void apply_rows(T* out, int64_t head, int64_t token, int64_t count, float* queries, float* norm, float* earlier,
                  const float* turn, const float* packed, const float* key_sum, Ahead& ahead) const {
    if (args.norm_query.data != nullptr) {
      rows_of_tokens<Isa>(queries, plan.width, plan.tokens_of(args.norm_query, head, token, false), count, args.dim);
      norm_rows(norm, queries, plan.width, key_sum, count);
    }
    rows_of_tokens<Isa>(queries, plan.width, plan.tokens_of(args.query, head, token, args.relu), count, args.dim);
    if (args.norm_query.data == nullptr) norm_rows(norm, queries, plan.width, key_sum, count);
    if (turn != nullptr) turn_rows<Isa>(queries, plan.width, turn, plan.width, count, args.dim);
    const int64_t lead = leading(), stride = Isa::panel;
    for (int64_t e = 0; e < args.dim_v; e += Isa::panel) {
      const int64_t columns = smaller(Isa::panel, args.dim_v - e);
      const float* panel = packed + args.dim * e;
      if (lead > 0)
        add_leading(earlier, stride, queries, plan.width, panel, panel_width<Isa>(args.dim_v, e), count, columns);
      for (int64_t r = 0; r < count; r += some_rows) {
        ahead.ask(some_lines);
        gemm::multiply_panel<Isa>(queries + r * plan.width + lead, plan.width,
                                  panel + lead * panel_width<Isa>(args.dim_v, e), smaller(some_rows, count - r),
                                  columns, args.dim - lead,
                                  DivideRows<Isa, T>{out + r * args.out_strides[2] + e, args.out_strides[2], norm + r,
                                                     lead > 0 ? earlier + r * stride : nullptr, stride});
      }
    }
  }

  // out[e][token]: a panel of tokens is the packed side, the summary the other.
  void apply_columns(T* out, int64_t head, int64_t token, int64_t count, float* queries, float* turned_queries,
                     float* norm, float* earlier, const float* turn, const float* summary, const float* key_sum,
                     Ahead& ahead) const {
    const int64_t columns = panel_width<Isa>(count, 0);
    if (args.norm_query.data != nullptr) {
      const TokenBlock from = plan.tokens_of(args.norm_query, head, token, false);
      if (from.width_stride == 1 && from.dtype == Dtype::bfloat16) {
        norm_rows(norm, static_cast<const bf16*>(from.data), from.token_stride, key_sum, count);
      } else if (from.width_stride == 1) {
        norm_rows(norm, static_cast<const float*>(from.data), from.token_stride, key_sum, count);
      } else {
        columns_of_tokens<Isa>(queries, columns, from, count, args.dim);
        norm_columns(norm, queries, columns, key_sum);
      }
    }
    TokenBlock query = plan.tokens_of(args.query, head, token, args.relu);
    if (turn != nullptr) {
      rows_of_tokens<Isa>(turned_queries, plan.width, query, count, args.dim);
      norm_rows(norm, turned_queries, plan.width, key_sum, count);
      turn_rows<Isa>(turned_queries, plan.width, turn, plan.width, count, args.dim);
      query = {turned_queries, plan.width, 1, Dtype::float32, false};
    }
    columns_of_tokens<Isa>(queries, columns, query, count, args.dim);
    if (args.norm_query.data == nullptr && turn == nullptr) norm_columns(norm, queries, columns, key_sum);
    const int64_t lead = leading(), stride = Isa::panel;
    for (int64_t d = 0; d < lead; d += dim_block) {
      const float *some = summary + d * args.dim_v, *of = queries + d * columns;
      if (d == 0)
        outer_panel<Isa>(some, args.dim_v, of, 0, args.dim_v, count, dim_block, StoreTo<Isa>{earlier, stride}, ahead);
      else
        outer_panel<Isa>(some, args.dim_v, of, 0, args.dim_v, count, dim_block, AddTo<Isa>{earlier, stride}, ahead);
    }
    outer_panel<Isa>(
        summary + lead * args.dim_v, args.dim_v, queries + lead * columns, 0, args.dim_v, count, args.dim - lead,
        DivideColumns<Isa, T>{out, args.out_strides[3], norm, lead > 0 ? earlier : nullptr, stride}, ahead);
  }

  // A normaliser without the risk of a division by zero; NaN stays.
  F32 bounded(F32 norm) const {
    const F32 floor = Isa::splat(args.floor);
    return Isa::select(norm < floor, floor, norm) + Isa::splat(args.eps);
  }

  // Dimensions that are summed apart from the last `dim_block`: longer sums lose precision.
  int64_t leading() const { return round_up(args.dim, dim_block) - dim_block; }

  // c = a · panel over the leading dimensions, a block of them at a time.
  void add_leading(float* c, int64_t c_stride, const float* a, int64_t a_stride, const float* panel,
                   int64_t panel_width, int64_t m, int64_t columns) const {
    for (int64_t d = 0; d < leading(); d += dim_block) {
      if (d == 0)
        gemm::multiply_panel<Isa>(a, a_stride, panel, m, columns, dim_block, StoreTo<Isa>{c, c_stride});
      else
        gemm::multiply_panel<Isa>(a + d, a_stride, panel + d * panel_width, m, columns, dim_block,
                                  AddTo<Isa>{c, c_stride});
    }
  }

  template <class S>
  void norm_rows(float* norm, const S* queries, int64_t stride, const float* key_sum, int64_t count) const {
    const int64_t whole = args.dim / lanes * lanes;
    const int rest = static_cast<int>(args.dim - whole);
    for (int64_t i = 0; i < count; i += lanes) {
      const int some = static_cast<int>(smaller(lanes, count - i));
      F32 parts[lanes];
      for (int r = 0; r < lanes; ++r) {
        F32 sum = Isa::zero();
        const S* query = queries + smaller(i + r, count - 1) * stride;
        for (int64_t d = 0; d < whole; d += lanes) sum = Isa::fma(Isa::load(query + d), Isa::load(key_sum + d), sum);
        if (rest > 0) sum = Isa::fma(Isa::load(query + whole, rest), Isa::load(key_sum + whole), sum);
        parts[r] = sum;
      }
      Isa::store(norm + i, divisor<T, Isa>(bounded(Isa::sum_each(parts))), some);
    }
  }

  void norm_columns(float* norm, const float* queries, int64_t columns, const float* key_sum) const {
    for (int64_t j = 0; j < columns; j += lanes) {
      F32 sum = Isa::zero();
      for (int64_t d = 0; d < args.dim; d += column_unit) {  // by parts: one long sum would lose precision
        F32 part = Isa::zero();
        for (int64_t i = d; i < smaller(d + column_unit, args.dim); ++i)
          part = Isa::fma(Isa::load(queries + i * columns + j), Isa::splat(key_sum[i]), part);
        sum += part;
      }
      Isa::store(norm + j, divisor<T, Isa>(bounded(sum)));
    }
  }
};

}  // namespace fx
