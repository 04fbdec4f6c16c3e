// The first pass of `relu_linear_attention`: Σ_j φ(k_j)ᵀ v_j [dim, dim_v] and Σ_j φ'(k_j) [dim], per head and chunk.
#pragma once

#include "outer_sum.inl.h"
#include "relu_linear_plan.inl.h"
#include "workspace.inl.h"

namespace fx {

// T: what keys and values are multiplied as.
template <class Isa, class T>
class ReluLinearSummarise {
 public:
  ReluLinearSummarise(const ReluLinearPlan<Isa>& cut, const float* turn_tables, float* into)
      : plan(cut), args(cut.args), turns(turn_tables), summaries(into) {}

  // One chunk of some heads.
  void run(int64_t first_head, int64_t heads, int64_t index) const {
    constexpr int64_t block = ReluLinearPlan<Isa>::block;
    T *dense = nullptr, *turned_keys = nullptr;
    char *keys = nullptr, *values = nullptr;
    lay_out(Scratch::user1, [&](Workspace& space) {
      dense = space.take<T>(larger(block * dense_stride(larger(args.dim, args.dim_v)), args.dim * key_stride));
      keys = space.take<char>(static_cast<int64_t>(gemm::packed_bytes<Isa, T>(block, args.dim)));
      values = space.take<char>(static_cast<int64_t>(gemm::packed_bytes<Isa, T>(block, args.dim_v)));
      turned_keys = space.take<T>(plan.turned() ? block * plan.width : 0);
    });
    const bool own_norm = args.norm_key.data != nullptr;
    const int64_t first = index * plan.chunk, last = smaller(first + plan.chunk, args.tokens);
    for (int64_t token = first; token < last; token += block) {
      const int64_t count = smaller(block, last - token);
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t head = first_head + h;
        float* summary = summaries + (head * plan.chunks + index) * plan.summary_size;
        float* key_sum = summary + args.dim * args.dim_v;
        if (token == first)
          for (int64_t d = 0; d < plan.width; ++d) key_sum[d] = 0;
        Ahead ahead;
        plan.with_next(first_head, heads, h, token, block, last, [&](int64_t next, int64_t at, int64_t tokens) {
          ahead.add(plan.tokens_of(args.value, next, at, false), tokens, args.dim_v);
          ahead.add(plan.tokens_of(args.key, next, at, false), tokens, args.dim);
          if (own_norm) ahead.add(plan.tokens_of(args.norm_key, next, at, false), tokens, args.dim);
        });
        pack_tokens(values, dense, plan.tokens_of(args.value, head, token, false), count, args.dim_v);
        if (own_norm) add_sums(key_sum, plan.tokens_of(args.norm_key, head, token, false), count);
        TokenBlock key = plan.tokens_of(args.key, head, token, args.relu);
        if (plan.turned()) {
          rows_of_tokens<Isa>(turned_keys, plan.width, key, count, args.dim);
          add_column_sums(key_sum, turned_keys, plan.width, count);
          turn_rows<Isa>(turned_keys, plan.width, plan.turns_of(turns, head, token), plan.width, count, args.dim);
          key = {turned_keys, plan.width, 1, sizeof(T) == sizeof(bf16) ? Dtype::bfloat16 : Dtype::float32, false};
        }
        float* own_sum = own_norm || plan.turned() ? nullptr : key_sum;
        add_products(summary, own_sum, keys, values, dense, key, count, token > first, ahead);
      }
    }
  }

 private:
  using F32 = typename Isa::F32;
  static constexpr int lanes = Isa::lanes;
  static constexpr int64_t key_stride = ReluLinearPlan<Isa>::block + 32;  // not a power of two: spreads over L1's sets

  const ReluLinearPlan<Isa>& plan;
  const ReluLinearAttentionArgs& args;
  const float* turns;
  float* summaries;  // [heads][chunks][summary_size]

  // summary (+)= φ(k)ᵀ v of packed values, and, where it is not null, key_sum += Σ φ(k).
  void add_products(float* summary, float* key_sum, void* keys, const void* values, T* dense, const TokenBlock& from,
                    int64_t count, bool accumulate, Ahead& ahead) const {
    if constexpr (Isa::template tiles<T>) {  // whose left operand is contiguous in what is summed over
      columns_of_tokens<Isa>(dense, key_stride, from, count, args.dim);
      if (key_sum != nullptr) add_row_sums(key_sum, dense, count);
      ahead.ask(INT64_MAX);
      gemm::multiply<Isa, T>(summary, args.dim_v, dense, key_stride, values, args.dim, args.dim_v, count, accumulate);
    } else {
      pack_tokens(keys, dense, from, count, args.dim);
      if (key_sum != nullptr) add_panel_sums(key_sum, keys, count);
      outer_sum<Isa, T>(summary, args.dim_v, keys, values, args.dim, args.dim_v, count, accumulate, ahead);
    }
  }

  static int64_t dense_stride(int64_t columns) { return round_up(columns, column_unit); }

  // [count][columns] as panels; through `dense`, as rows, where they cannot be packed as they lie.
  void pack_tokens(void* packed, T* dense, const TokenBlock& from, int64_t count, int64_t columns) const {
    constexpr Dtype same = sizeof(T) == sizeof(bf16) ? Dtype::bfloat16 : Dtype::float32;
    if (from.dtype == same && !from.relu)
      return gemm::pack<Isa, T>(packed, static_cast<const T*>(from.data), from.width_stride, from.token_stride, count,
                                columns);
    if (from.dtype == same && from.width_stride == 1)
      return pack_positive(packed, static_cast<const positive<T>*>(from.data), from.token_stride, count, columns);
    rows_of_tokens<Isa>(dense, dense_stride(columns), from, count, columns);
    gemm::pack<Isa, T>(packed, dense, 1, dense_stride(columns), count, columns);
  }
  void pack_positive(void* packed, const positive<T>* rows, int64_t stride, int64_t count, int64_t columns) const {
    auto* panel = static_cast<typename Isa::template Panel<T>*>(packed);
    for (int64_t n0 = 0; n0 < columns; n0 += Isa::panel) {
      const int64_t panel_columns = panel_width<Isa>(columns, n0);
      pack_along_columns<Isa>(panel, panel_columns, rows + n0, stride, count, smaller(columns - n0, panel_columns));
      panel += panel_depth<Isa, T>(count) * panel_columns;
    }
  }

  // sums[d] += Σ_j of packed keys, as products with one. In several sums side by side: a normaliser's error is
  // that of all its row.
  void add_panel_sums(float* sums, const void* packed, int64_t count) const {
    using Element = typename Isa::template Panel<T>;
    constexpr int parts = 8;
    constexpr Element ones =
        sizeof(T) < sizeof(Element) && Isa::template k_step<T> == 2 ? Element(0x3f803f80) : Element(1);
    const auto one = Isa::broadcast(&ones);
    const int64_t depth = panel_depth<Isa, T>(count);
    auto* panel = static_cast<const Element*>(packed);
    for (int64_t d0 = 0; d0 < args.dim; d0 += Isa::panel) {
      const int64_t columns = panel_width<Isa>(args.dim, d0);
      for (int64_t d = 0; d < columns; d += lanes) {
        F32 part[parts] = {};
        int64_t j = 0;
        for (; j + parts <= depth; j += parts) FX_UNROLL
        for (int p = 0; p < parts; ++p)
          part[p] = Isa::dot(one, Isa::panel_load(panel + (j + p) * columns + d), part[p]);
        for (; j < depth; ++j) part[0] = Isa::dot(one, Isa::panel_load(panel + j * columns + d), part[0]);
        FX_UNROLL
        for (int some = parts / 2; some > 0; some /= 2) FX_UNROLL
        for (int p = 0; p < some; ++p) part[p] += part[p + some];
        float* to = sums + d0 + d;
        Isa::store(to, Isa::load(to) + part[0]);
      }
      panel += depth * columns;
    }
  }

  // sums[d] += Σ_j rows[d][j]
  template <class S>
  void add_row_sums(float* sums, const S* rows, int64_t count) const {
    for (int64_t d = 0; d < args.dim; ++d, rows += key_stride) {
      F32 one = Isa::zero(), two = Isa::zero();
      int64_t j = 0;
      for (; j + 2 * lanes <= count; j += 2 * lanes) one += Isa::load(rows + j), two += Isa::load(rows + j + lanes);
      for (; j < count; j += lanes) one += Isa::load(rows + j, static_cast<int>(smaller(lanes, count - j)));
      sums[d] += Isa::sum(one + two);
    }
  }

  // The same from tokens as they lie.
  void add_sums(float* sums, const TokenBlock& from, int64_t count) const {
    if (from.width_stride == 1)
      return from.dtype == Dtype::bfloat16
                 ? add_column_sums(sums, static_cast<const bf16*>(from.data), from.token_stride, count)
                 : add_column_sums(sums, static_cast<const float*>(from.data), from.token_stride, count);
    float* rows = nullptr;
    lay_out(Scratch::user2, [&](Workspace& space) { rows = space.take<float>(args.dim * key_stride); });
    columns_of_tokens<Isa>(rows, key_stride, from, count, args.dim);
    add_row_sums(sums, rows, count);
  }

  // sums[d] += Σ_j rows[j][d]
  template <class S>
  void add_column_sums(float* sums, const S* rows, int64_t stride, int64_t count) const {
    constexpr int64_t wide = 4 * lanes;
    int64_t d = 0;
    for (; d + wide <= args.dim; d += wide) add_columns<4>(sums + d, rows + d, stride, count, lanes);
    for (; d < args.dim; d += lanes)
      add_columns<1>(sums + d, rows + d, stride, count, static_cast<int>(smaller(lanes, args.dim - d)));
  }

  // Some columns of that, `valid` of the last vector's. In several sums side by side: a normaliser's error is
  // that of all its row.
  template <int Vectors, class S>
  static FX_MEMBER void add_columns(float* sums, const S* rows, int64_t stride, int64_t count, int valid) {
    constexpr int parts = 8 / Vectors;
    F32 sum[parts][Vectors];
    FX_UNROLL
    for (int p = 0; p < parts; ++p) FX_UNROLL
    for (int v = 0; v < Vectors; ++v) sum[p][v] = Isa::zero();
    const auto add = [&](int p, int64_t j) {
      FX_UNROLL
      for (int v = 0; v < Vectors; ++v)
        sum[p][v] += v + 1 < Vectors || valid == lanes ? Isa::load(rows + j * stride + v * lanes)
                                                       : Isa::load(rows + j * stride + v * lanes, valid);
    };
    int64_t j = 0;
    for (; j + parts <= count; j += parts) FX_UNROLL
    for (int p = 0; p < parts; ++p) add(p, j + p);
    for (; j < count; ++j) add(0, j);
    for (int some = parts / 2; some > 0; some /= 2)
      for (int p = 0; p < some; ++p) FX_UNROLL
    for (int v = 0; v < Vectors; ++v) sum[p][v] += sum[p + some][v];
    FX_UNROLL
    for (int v = 0; v < Vectors; ++v) Isa::store(sums + v * lanes, Isa::load(sums + v * lanes) + sum[0][v]);
  }
};

}  // namespace fx
