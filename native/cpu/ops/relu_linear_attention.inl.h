// The `relu_linear_attention` kernel: one pass over keys and values, one over queries.
//
// First Σ_j φ(k_j)ᵀ v_j [dim, dim_v] and Σ_j φ'(k_j) [dim], per head, in fp32 (bf16 keys and values multiply
// as bf16, which is exact; at quality "high" fp32 ones are rounded to that). Then each block of queries times that
// matrix in fp32, divided by its normaliser on the way out. Tokens are cut into chunks by their number alone, so the
// result does not depend on threads.
#pragma once

#include "../caches.h"
#include "../engine/gemm.inl.h"
#include "outer_sum.inl.h"
#include "relu_linear_attention.h"
#include "token_block.inl.h"
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

FX_INLINE bool are_narrow(const ReluLinearAttentionArgs& args) {
  return args.key.dtype == Dtype::bfloat16 && args.value.dtype == Dtype::bfloat16;
}

// Does the first product round its operands to bf16?
template <class Isa>
FX_INLINE bool rounds_operands(const ReluLinearAttentionArgs& args) {
  return Isa::template k_step<bf16> == 2 && args.bf16_operands && !are_narrow(args);
}

template <class Isa>
class ReluLinearAttention {
 public:
  explicit ReluLinearAttention(const ReluLinearAttentionArgs& arguments) : args(arguments) {
    width = round_up(args.dim, column_unit);
    chunk = larger(least_chunk, round_up(divide_up(args.tokens, most_chunks), block));
    chunks = divide_up(args.tokens, chunk);
    channel_major = args.out_strides[3] != 1;
    summary_size = args.dim * args.dim_v + width;
    applied_size = static_cast<int64_t>(gemm::packed_bytes<Isa, float>(args.dim, args.dim_v) / sizeof(float));
    if (channel_major) applied_size = 0;
  }

  void run(const Parallel& pool) const {
    const int64_t heads = args.batch * args.heads;
    float *summaries = nullptr, *applied = nullptr, *turns = nullptr;
    lay_out(Scratch::user0, [&](Workspace& space) {
      turns = space.take<float>(turn_tables() * args.tokens * width);
      summaries = space.take<float>(heads * chunks * summary_size);
      applied = space.take<float>(heads * applied_size);
    });
    const bool narrow = are_narrow(args) || rounds_operands<Isa>(args);
    const int64_t few = larger(1, (16 << 10) / (smaller(chunk, args.tokens) * args.dim));  // tasks worth a thread
    const int64_t group = heads_together(pool.threads);
    const int64_t groups = divide_up(args.heads, group), tasks = args.batch * groups * chunks;
    const auto each_task = [&](const auto& work) {
      parallel_for(pool, tasks, divide_up(few, group), [&](int64_t begin, int64_t end) {
        [[maybe_unused]] const typename Isa::Session session;
        for (int64_t task = begin; task < end; ++task) {
          const int64_t index = task / chunks, first = index % groups * group;
          work(index / groups * args.heads + first, smaller(group, args.heads - first), task % chunks);
        }
      });
    };
    tabulate_turns(turns, pool);
    each_task([&](int64_t head, int64_t count, int64_t index) {
      if (narrow)
        summarise<bf16>(head, count, index, turns, summaries);
      else
        summarise<float>(head, count, index, turns, summaries);
    });
    parallel_for(pool, heads, larger(1, few), [&](int64_t begin, int64_t end) {
      for (int64_t head = begin; head < end; ++head)
        combine(summaries + head * chunks * summary_size, applied + head * applied_size);
    });
    each_task([&](int64_t head, int64_t count, int64_t index) {
      if (args.out_dtype == Dtype::bfloat16)
        apply<bf16>(head, count, index, turns, applied, summaries);
      else
        apply<float>(head, count, index, turns, applied, summaries);
    });
  }

 private:
  // Enough heads together that their tokens make long reads; but their summaries in half of L2, and work for all
  // threads. Groups are of one size, give or take a head: threads get equal numbers of them.
  int64_t heads_together(int threads) const {
    const int64_t item = args.key.dtype == Dtype::bfloat16 ? 2 : 4;
    int64_t group = smaller(divide_up(long_read, args.dim * item), args.heads);
    group = smaller(group, caches().l2 / 2 / (args.dim * args.dim_v * static_cast<int64_t>(sizeof(float))));
    if (threads > 1) group = smaller(group, args.batch * args.heads * chunks / (4 * threads));
    return divide_up(args.heads, divide_up(args.heads, larger(1, group)));
  }

  using F32 = typename Isa::F32;
  static constexpr int lanes = Isa::lanes;
  static constexpr int64_t block = 128;  // tokens at a time: longer sums in one register would lose precision
  static constexpr int64_t least_chunk = 1024, most_chunks = 16;
  static constexpr int64_t long_read = 2048;  // bytes, after which rows that lie apart are read at memory's speed
  static constexpr int64_t key_stride = block + 32;  // not a power of two: rows spread over L1's sets

  const ReluLinearAttentionArgs& args;
  int64_t width;  // of a row of features, in whole vectors
  int64_t chunk, chunks, summary_size, applied_size;
  bool channel_major;

  TokenBlock tokens_of(const TokenTensor& tensor, int64_t head, int64_t token, bool relu) const {
    return token_block(tensor, head / args.heads, head % args.heads, token, relu);
  }

  // Calls add(head, token, count) of the block of tokens that comes behind one of the h-th head, if any does.
  template <class Add>
  static FX_MEMBER void with_next(int64_t first_head, int64_t heads, int64_t h, int64_t token, int64_t step,
                                  int64_t last, const Add& add) {
    const bool same_tokens = h + 1 < heads;
    const int64_t next = same_tokens ? token : token + step;
    if (next < last) add(same_tokens ? first_head + h + 1 : first_head, next, smaller(step, last - next));
  }

  // Are pairs of features turned by the same angle in every batch, or head?
  bool turned() const { return args.cos.data != nullptr; }
  bool same_turns(int64_t dim) const { return args.cos.strides[dim] == 0 && args.sin.strides[dim] == 0; }
  int64_t turn_tables() const {
    return turned() ? (same_turns(0) ? 1 : args.batch) * (same_turns(1) ? 1 : args.heads) : 0;
  }
  const float* turns_of(const float* turns, int64_t head, int64_t token) const {
    const int64_t batch = same_turns(0) ? 0 : head / args.heads, inner = same_turns(1) ? 0 : head % args.heads;
    return turns + ((batch * (same_turns(1) ? 1 : args.heads) + inner) * args.tokens + token) * width;
  }

  // turns[table][token] = (cos, sin) of each pair, in fp32, with zeros behind: read again for every head.
  void tabulate_turns(float* turns, const Parallel& pool) const {
    const int64_t inner = turned() && !same_turns(1) ? args.heads : 1;
    parallel_for(pool, turn_tables() * args.tokens, larger(1, (16 << 10) / width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t table = row / args.tokens, token = row % args.tokens;
        spread(turns + row * width, token_block(args.cos, table / inner, table % inner, token, false));
        spread(turns + row * width + 1, token_block(args.sin, table / inner, table % inner, token, false));
        for (int64_t d = args.dim; d < width; ++d) turns[row * width + d] = 0;
      }
    });
  }
  void spread(float* to, const TokenBlock& from) const {
    const auto each = [&](const auto* source) {
      for (int64_t i = 0; 2 * i < args.dim; ++i) to[2 * i] = to_float(source[i * from.width_stride]);
    };
    if (from.dtype == Dtype::bfloat16)
      each(static_cast<const bf16*>(from.data));
    else
      each(static_cast<const float*>(from.data));
  }

  // Over one chunk, for some heads: summary = Σ φ(k)ᵀ v, then Σ φ'(k).
  template <class T>
  void summarise(int64_t first_head, int64_t heads, int64_t index, const float* turns, float* summaries) const {
    T *dense = nullptr, *turned_keys = nullptr;
    char *keys = nullptr, *values = nullptr;
    lay_out(Scratch::user1, [&](Workspace& space) {
      dense = space.take<T>(larger(block * dense_stride(larger(args.dim, args.dim_v)), args.dim * key_stride));
      keys = space.take<char>(static_cast<int64_t>(gemm::packed_bytes<Isa, T>(block, args.dim)));
      values = space.take<char>(static_cast<int64_t>(gemm::packed_bytes<Isa, T>(block, args.dim_v)));
      turned_keys = space.take<T>(turned() ? block * width : 0);
    });
    const bool own_norm = args.norm_key.data != nullptr;
    const int64_t first = index * chunk, last = smaller(first + chunk, args.tokens);
    for (int64_t token = first; token < last; token += block) {
      const int64_t count = smaller(block, last - token);
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t head = first_head + h;
        float *summary = summaries + (head * chunks + index) * summary_size, *key_sum = summary + args.dim * args.dim_v;
        if (token == first)
          for (int64_t d = 0; d < width; ++d) key_sum[d] = 0;
        Ahead ahead;
        with_next(first_head, heads, h, token, block, last, [&](int64_t next, int64_t at, int64_t tokens) {
          ahead.add(tokens_of(args.value, next, at, false), tokens, args.dim_v);
          ahead.add(tokens_of(args.key, next, at, false), tokens, args.dim);
          if (own_norm) ahead.add(tokens_of(args.norm_key, next, at, false), tokens, args.dim);
        });
        pack_tokens(values, dense, tokens_of(args.value, head, token, false), count, args.dim_v);
        if (own_norm) add_sums(key_sum, tokens_of(args.norm_key, head, token, false), count);
        TokenBlock key = tokens_of(args.key, head, token, args.relu);
        if (turned()) {
          rows_of_tokens<Isa>(turned_keys, width, key, count, args.dim);
          add_column_sums(key_sum, turned_keys, width, count);
          turn_rows<Isa>(turned_keys, width, turns_of(turns, head, token), width, count, args.dim);
          key = {turned_keys, width, 1, sizeof(T) == sizeof(bf16) ? Dtype::bfloat16 : Dtype::float32, false};
        }
        float* own_sum = own_norm || turned() ? nullptr : key_sum;
        add_products(summary, own_sum, keys, values, dense, key, count, token > first, ahead);
      }
    }
  }

  // summary (+)= φ(k)ᵀ v of packed values, and, where it is not null, key_sum += Σ φ(k).
  template <class T>
  void add_products(float* summary, float* key_sum, void* keys, const void* values, T* dense, const TokenBlock& from,
                    int64_t count, bool accumulate, Ahead& ahead) const {
    if constexpr (Isa::template tiles<T>) {  // whose left operand is contiguous in what is summed over
      columns_of_tokens<Isa>(dense, key_stride, from, count, args.dim);
      if (key_sum != nullptr) add_row_sums(key_sum, dense, count);
      ahead.ask(all_lines);
      gemm::multiply<Isa, T>(summary, args.dim_v, dense, key_stride, values, args.dim, args.dim_v, count, accumulate);
    } else {
      pack_tokens(keys, dense, from, count, args.dim);
      if (key_sum != nullptr) add_panel_sums<T>(key_sum, keys, count);
      outer_sum<Isa, T>(summary, args.dim_v, keys, values, args.dim, args.dim_v, count, accumulate, ahead);
    }
  }

  static int64_t dense_stride(int64_t columns) { return round_up(columns, column_unit); }

  // [count][columns] as panels; through `dense`, as rows, where they cannot be packed as they lie.
  template <class T>
  void pack_tokens(void* packed, T* dense, const TokenBlock& from, int64_t count, int64_t columns) const {
    constexpr Dtype same = sizeof(T) == sizeof(bf16) ? Dtype::bfloat16 : Dtype::float32;
    if (from.dtype == same && !from.relu)
      return gemm::pack<Isa, T>(packed, static_cast<const T*>(from.data), from.width_stride, from.token_stride, count,
                                columns);
    if (from.dtype == same && from.width_stride == 1)
      return pack_positive<T>(packed, static_cast<const positive<T>*>(from.data), from.token_stride, count, columns);
    rows_of_tokens<Isa>(dense, dense_stride(columns), from, count, columns);
    gemm::pack<Isa, T>(packed, dense, 1, dense_stride(columns), count, columns);
  }
  template <class T>
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
  template <class T>
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
  template <class T>
  void add_row_sums(float* sums, const T* rows, int64_t count) const {
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

  // Adds the chunks' summaries up into the first, and packs it where `apply` multiplies with it as columns.
  void combine(float* summaries, float* applied) const {
    for (int64_t c = 1; c < chunks; ++c)
      for (int64_t i = 0; i < summary_size; ++i) summaries[i] += summaries[c * summary_size + i];
    if (!channel_major) gemm::pack<Isa, float>(applied, summaries, 1, args.dim_v, args.dim, args.dim_v);
  }

  template <class T>
  void apply(int64_t first_head, int64_t heads, int64_t index, const float* turns, const float* applied,
             const float* summaries) const {
    float *queries = nullptr, *norm = nullptr, *earlier = nullptr, *turned_queries = nullptr;
    lay_out(Scratch::user1, [&](Workspace& space) {
      queries = space.take<float>(larger(apply_block * width, args.dim * Isa::panel));
      norm = space.take<float>(larger(apply_block, Isa::panel));
      earlier = space.take<float>(leading() > 0 ? larger(apply_block, args.dim_v) * Isa::panel : 0);
      turned_queries = space.take<float>(turned() && channel_major ? Isa::panel * width : 0);
    });
    const int64_t first = index * chunk, last = smaller(first + chunk, args.tokens);
    const int64_t step = channel_major ? Isa::panel : apply_block;
    for (int64_t token = first; token < last; token += step) {
      const int64_t count = smaller(step, last - token);
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t head = first_head + h;
        Ahead ahead;
        with_next(first_head, heads, h, token, step, last, [&](int64_t next, int64_t at, int64_t tokens) {
          ahead.add(tokens_of(args.query, next, at, false), tokens, args.dim);
          if (args.norm_query.data != nullptr) ahead.add(tokens_of(args.norm_query, next, at, false), tokens, args.dim);
        });
        T* out = static_cast<T*>(args.out) + head / args.heads * args.out_strides[0] +
                 head % args.heads * args.out_strides[1] + token * args.out_strides[2];
        const float* own = summaries + head * chunks * summary_size;
        const float* key_sum = own + args.dim * args.dim_v;
        const float* turn = turned() ? turns_of(turns, head, token) : nullptr;
        if (channel_major)
          apply_columns(out, head, token, count, queries, turned_queries, norm, earlier, turn, own, key_sum, ahead);
        else
          apply_rows(out, head, token, count, queries, norm, earlier, turn, applied + head * applied_size, key_sum,
                     ahead);
      }
    }
  }

  // out[token][e]: queries are the rows, the summary is the packed side.
  template <class T>
  void apply_rows(T* out, int64_t head, int64_t token, int64_t count, float* queries, float* norm, float* earlier,
                  const float* turn, const float* applied, const float* key_sum, Ahead& ahead) const {
    if (args.norm_query.data != nullptr) {
      rows_of_tokens<Isa>(queries, width, tokens_of(args.norm_query, head, token, false), count, args.dim);
      norm_rows<T>(norm, queries, width, key_sum, count);
    }
    rows_of_tokens<Isa>(queries, width, tokens_of(args.query, head, token, args.relu), count, args.dim);
    if (args.norm_query.data == nullptr) norm_rows<T>(norm, queries, width, key_sum, count);
    if (turn != nullptr) turn_rows<Isa>(queries, width, turn, width, count, args.dim);
    const int64_t lead = leading(), stride = Isa::panel;
    for (int64_t e = 0; e < args.dim_v; e += Isa::panel) {
      const int64_t columns = smaller(Isa::panel, args.dim_v - e);
      const float* panel = applied + args.dim * e;
      if (lead > 0)
        add_leading(earlier, stride, queries, width, panel, panel_width<Isa>(args.dim_v, e), count, columns);
      for (int64_t r = 0; r < count; r += some_rows) {
        ahead.ask(some_lines);
        gemm::multiply_panel<Isa>(queries + r * width + lead, width, panel + lead * panel_width<Isa>(args.dim_v, e),
                                  smaller(some_rows, count - r), columns, args.dim - lead,
                                  DivideRows<Isa, T>{out + r * args.out_strides[2] + e, args.out_strides[2], norm + r,
                                                     lead > 0 ? earlier + r * stride : nullptr, stride});
      }
    }
  }

  // out[e][token]: a panel of tokens is the packed side, the summary the other.
  template <class T>
  void apply_columns(T* out, int64_t head, int64_t token, int64_t count, float* queries, float* turned_queries,
                     float* norm, float* earlier, const float* turn, const float* summary, const float* key_sum,
                     Ahead& ahead) const {
    const int64_t columns = panel_width<Isa>(count, 0);
    if (args.norm_query.data != nullptr) {
      const TokenBlock from = tokens_of(args.norm_query, head, token, false);
      if (from.width_stride == 1 && from.dtype == Dtype::bfloat16) {
        norm_rows<T>(norm, static_cast<const bf16*>(from.data), from.token_stride, key_sum, count);
      } else if (from.width_stride == 1) {
        norm_rows<T>(norm, static_cast<const float*>(from.data), from.token_stride, key_sum, count);
      } else {
        columns_of_tokens<Isa>(queries, columns, from, count, args.dim);
        norm_columns<T>(norm, queries, columns, key_sum);
      }
    }
    TokenBlock query = tokens_of(args.query, head, token, args.relu);
    if (turn != nullptr) {
      rows_of_tokens<Isa>(turned_queries, width, query, count, args.dim);
      norm_rows<T>(norm, turned_queries, width, key_sum, count);
      turn_rows<Isa>(turned_queries, width, turn, width, count, args.dim);
      query = {turned_queries, width, 1, Dtype::float32, false};
    }
    columns_of_tokens<Isa>(queries, columns, query, count, args.dim);
    if (args.norm_query.data == nullptr && turn == nullptr) norm_columns<T>(norm, queries, columns, key_sum);
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

  template <class T, class S>
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

  template <class T>
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

  static constexpr int64_t dim_block = 128;
  static constexpr int64_t some_rows = 2 * Isa::tile_rows, some_lines = 64, all_lines = INT64_MAX;
  static constexpr int64_t apply_block = 128;  // queries as fp32 beside the summary in L2
};

template <class Isa>
static const char* relu_linear_attention_kernel(const ReluLinearAttentionArgs& args, const Parallel& pool) {
  ReluLinearAttention<Isa>(args).run(pool);
  const bool tokens = args.out_strides[3] == 1;
  if (rounds_operands<Isa>(args)) return tokens ? "tokens_bf16" : "channels_bf16";
  return tokens ? "tokens" : "channels";
}

}  // namespace fx
