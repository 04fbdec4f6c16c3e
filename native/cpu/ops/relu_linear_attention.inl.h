// The `relu_linear_attention` kernel: one pass over keys and values, one over queries.
//
// First Σ_j φ(k_j)ᵀ v_j [dim, dim_v] and Σ_j φ'(k_j) [dim], per head, in fp32 (bf16 keys and values multiply
// as bf16, which is exact). Then each block of queries times that matrix in fp32, divided by its normaliser on
// the way out. Tokens are cut into chunks by their number alone, so the result does not depend on threads.
#pragma once

#include "../engine/gemm.inl.h"
#include "relu_linear_attention.h"
#include "token_block.inl.h"
#include "workspace.inl.h"

namespace fx {

// Sums of a tile, divided by the normaliser, in the order and type of the result: rows are tokens ...
template <class Isa, class T>
struct DivideRows {
  T* out;
  int64_t stride;
  const float* inverse;
  const float* earlier;  // sums of the dimensions before, or null
  int64_t earlier_stride;

  FX_MEMBER void operator()(int64_t row, int64_t column, typename Isa::F32 sums, int count) const {
    if (earlier != nullptr) sums = sums + Isa::load(earlier + row * earlier_stride + column);
    sums = sums * Isa::splat(inverse[row]);
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
  const float* inverse;
  const float* earlier;
  int64_t earlier_stride;

  FX_MEMBER void operator()(int64_t row, int64_t column, typename Isa::F32 sums, int count) const {
    if (earlier != nullptr) sums = sums + Isa::load(earlier + row * earlier_stride + column);
    sums = sums * Isa::load(inverse + column);
    T* to = out + row * stride + column;
    if (count == Isa::lanes)
      Isa::store(to, sums);
    else
      Isa::store(to, sums, count);
  }
};

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
    applied_size = larger(applied_size, args.dim * args.dim_v);
  }

  void run(const Parallel& pool) const {
    const int64_t heads = args.batch * args.heads;
    float *summaries = nullptr, *applied = nullptr;
    lay_out(Scratch::user0, [&](Workspace& space) {
      summaries = space.take<float>(heads * chunks * summary_size);
      applied = space.take<float>(heads * applied_size);
    });
    const bool narrow = args.key.dtype == Dtype::bfloat16 && args.value.dtype == Dtype::bfloat16;
    const int64_t few = larger(1, (16 << 10) / (smaller(chunk, args.tokens) * args.dim));  // tasks worth a thread
    parallel_for(pool, heads * chunks, few, [&](int64_t begin, int64_t end) {
      [[maybe_unused]] const typename Isa::Session session;
      for (int64_t task = begin; task < end; ++task) {
        float* summary = summaries + task * summary_size;
        if (narrow)
          summarise<bf16>(task / chunks, task % chunks, summary);
        else
          summarise<float>(task / chunks, task % chunks, summary);
      }
    });
    parallel_for(pool, heads, larger(1, few), [&](int64_t begin, int64_t end) {
      for (int64_t head = begin; head < end; ++head)
        combine(summaries + head * chunks * summary_size, applied + head * applied_size);
    });
    parallel_for(pool, heads * chunks, few, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t head = task / chunks;
        const float* summary = summaries + head * chunks * summary_size;
        if (args.out_dtype == Dtype::bfloat16)
          apply<bf16>(head, task % chunks, applied + head * applied_size, summary + args.dim * args.dim_v);
        else
          apply<float>(head, task % chunks, applied + head * applied_size, summary + args.dim * args.dim_v);
      }
    });
  }

 private:
  using F32 = typename Isa::F32;
  static constexpr int lanes = Isa::lanes;
  static constexpr int64_t block = 128;  // tokens at a time: longer sums in one register would lose precision
  static constexpr int64_t least_chunk = 1024, most_chunks = 16;
  static constexpr int64_t key_stride = block + 32;  // not a power of two: rows spread over L1's sets

  const ReluLinearAttentionArgs& args;
  int64_t width;  // of a row of features, in whole vectors
  int64_t chunk, chunks, summary_size, applied_size;
  bool channel_major;

  TokenBlock tokens_of(const TokenTensor& tensor, int64_t head, int64_t token, bool relu) const {
    return token_block(tensor, head / args.heads, head % args.heads, token, relu);
  }

  // Over one chunk: summary = Σ φ(k)ᵀ v, then Σ φ'(k).
  template <class T>
  void summarise(int64_t head, int64_t index, float* summary) const {
    T *keys = nullptr, *values = nullptr;
    char* packed = nullptr;
    lay_out(Scratch::user1, [&](Workspace& space) {
      keys = space.take<T>(larger(args.dim * key_stride, block * width));
      values = space.take<T>(block * round_up(args.dim_v, column_unit));
      packed = space.take<char>(static_cast<int64_t>(gemm::packed_bytes<Isa, T>(block, args.dim_v)));
    });
    const bool own_norm = args.norm_key.data != nullptr;
    float* key_sum = summary + args.dim * args.dim_v;
    for (int64_t d = 0; d < width; ++d) key_sum[d] = 0;

    const int64_t first = index * chunk, last = smaller(first + chunk, args.tokens);
    for (int64_t token = first; token < last; token += block) {
      const int64_t count = smaller(block, last - token);
      pack_values(packed, values, tokens_of(args.value, head, token, false), count);
      columns_of_tokens<Isa>(keys, key_stride, tokens_of(args.key, head, token, args.relu), count, args.dim);
      gemm::multiply<Isa, T>(summary, args.dim_v, keys, key_stride, packed, args.dim, args.dim_v, count, token > first);
      if (own_norm)
        add_sums(key_sum, tokens_of(args.norm_key, head, token, false), count);
      else
        add_row_sums(key_sum, keys, count);
    }
  }

  template <class T>
  void pack_values(void* packed, T* dense, const TokenBlock& from, int64_t count) const {
    constexpr Dtype same = sizeof(T) == sizeof(bf16) ? Dtype::bfloat16 : Dtype::float32;
    if (from.dtype == same) {
      gemm::pack<Isa, T>(packed, static_cast<const T*>(from.data), from.width_stride, from.token_stride, count,
                         args.dim_v);
    } else {
      const int64_t stride = round_up(args.dim_v, column_unit);
      rows_of_tokens<Isa>(dense, stride, from, count, args.dim_v);
      gemm::pack<Isa, T>(packed, dense, 1, stride, count, args.dim_v);
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

  // The same from a tensor that is read for this only.
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
    for (; d + wide <= args.dim; d += wide) {
      F32 sum[4] = {Isa::zero(), Isa::zero(), Isa::zero(), Isa::zero()};
      for (int64_t j = 0; j < count; ++j) FX_UNROLL
      for (int v = 0; v < 4; ++v) sum[v] += Isa::load(rows + j * stride + d + v * lanes);
      FX_UNROLL
      for (int v = 0; v < 4; ++v) Isa::store(sums + d + v * lanes, Isa::load(sums + d + v * lanes) + sum[v]);
    }
    for (; d < args.dim; d += lanes) {
      const int valid = static_cast<int>(smaller(lanes, args.dim - d));
      F32 sum = Isa::zero();
      for (int64_t j = 0; j < count; ++j) sum += Isa::load(rows + j * stride + d, valid);
      Isa::store(sums + d, Isa::load(sums + d) + sum);
    }
  }

  // Adds the chunks' summaries up into the first, and brings it into the order that `apply` multiplies with.
  void combine(float* summaries, float* applied) const {
    for (int64_t c = 1; c < chunks; ++c)
      for (int64_t i = 0; i < summary_size; ++i) summaries[i] += summaries[c * summary_size + i];
    if (!channel_major) return gemm::pack<Isa, float>(applied, summaries, 1, args.dim_v, args.dim, args.dim_v);
    for (int64_t d = 0; d < args.dim; ++d)
      for (int64_t e = 0; e < args.dim_v; ++e) applied[e * args.dim + d] = summaries[d * args.dim_v + e];
  }

  template <class T>
  void apply(int64_t head, int64_t index, const float* applied, const float* key_sum) const {
    float *queries = nullptr, *inverse = nullptr, *earlier = nullptr;
    lay_out(Scratch::user1, [&](Workspace& space) {
      queries = space.take<float>(larger(apply_block * width, args.dim * Isa::panel));
      inverse = space.take<float>(larger(apply_block, Isa::panel));
      earlier = space.take<float>(leading() > 0 ? larger(apply_block, args.dim_v) * Isa::panel : 0);
    });
    const int64_t first = index * chunk, last = smaller(first + chunk, args.tokens);
    const int64_t step = channel_major ? Isa::panel : apply_block;
    for (int64_t token = first; token < last; token += step) {
      const int64_t count = smaller(step, last - token);
      T* out = static_cast<T*>(args.out) + head / args.heads * args.out_strides[0] +
               head % args.heads * args.out_strides[1] + token * args.out_strides[2];
      if (channel_major)
        apply_columns(out, head, token, count, queries, inverse, earlier, applied, key_sum);
      else
        apply_rows(out, head, token, count, queries, inverse, earlier, applied, key_sum);
    }
  }

  // out[token][e]: queries are the rows, the summary is the packed side.
  template <class T>
  void apply_rows(T* out, int64_t head, int64_t token, int64_t count, float* queries, float* inverse, float* earlier,
                  const float* applied, const float* key_sum) const {
    if (args.norm_query.data != nullptr) {
      rows_of_tokens<Isa>(queries, width, tokens_of(args.norm_query, head, token, false), count, args.dim);
      invert_rows(inverse, queries, width, key_sum, count);
    }
    rows_of_tokens<Isa>(queries, width, tokens_of(args.query, head, token, args.relu), count, args.dim);
    if (args.norm_query.data == nullptr) invert_rows(inverse, queries, width, key_sum, count);
    for (int64_t e = 0; e < args.dim_v; e += Isa::panel) {
      const int64_t columns = smaller(Isa::panel, args.dim_v - e);
      const float* panel = applied + args.dim * e;
      const int64_t lead = leading(), stride = Isa::panel;
      if (lead > 0)
        add_leading(earlier, stride, queries, width, panel, panel_width<Isa>(args.dim_v, e), count, columns);
      gemm::multiply_panel<Isa>(
          queries + lead, width, panel + lead * panel_width<Isa>(args.dim_v, e), count, columns, args.dim - lead,
          DivideRows<Isa, T>{out + e, args.out_strides[2], inverse, lead > 0 ? earlier : nullptr, stride});
    }
  }

  // out[e][token]: a panel of tokens is the packed side, rows of the transposed summary the other.
  template <class T>
  void apply_columns(T* out, int64_t head, int64_t token, int64_t count, float* queries, float* inverse, float* earlier,
                     const float* applied, const float* key_sum) const {
    const int64_t columns = panel_width<Isa>(count, 0);
    if (args.norm_query.data != nullptr) {
      const TokenBlock from = tokens_of(args.norm_query, head, token, false);
      if (from.width_stride == 1 && from.dtype == Dtype::bfloat16) {
        invert_rows(inverse, static_cast<const bf16*>(from.data), from.token_stride, key_sum, count);
      } else if (from.width_stride == 1) {
        invert_rows(inverse, static_cast<const float*>(from.data), from.token_stride, key_sum, count);
      } else {
        columns_of_tokens<Isa>(queries, columns, from, count, args.dim);
        invert_columns(inverse, queries, columns, key_sum);
      }
    }
    columns_of_tokens<Isa>(queries, columns, tokens_of(args.query, head, token, args.relu), count, args.dim);
    if (args.norm_query.data == nullptr) invert_columns(inverse, queries, columns, key_sum);
    const int64_t lead = leading(), stride = Isa::panel;
    if (lead > 0) add_leading(earlier, stride, applied, args.dim, queries, columns, args.dim_v, count);
    gemm::multiply_panel<Isa>(
        applied + lead, args.dim, queries + lead * columns, args.dim_v, count, args.dim - lead,
        DivideColumns<Isa, T>{out, args.out_strides[3], inverse, lead > 0 ? earlier : nullptr, stride});
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
  void invert_rows(float* inverse, const S* queries, int64_t stride, const float* key_sum, int64_t count) const {
    const int64_t whole = args.dim / lanes * lanes;
    const int rest = static_cast<int>(args.dim - whole);
    for (int64_t i = 0; i < count; ++i, queries += stride) {
      F32 sum = Isa::zero();
      for (int64_t d = 0; d < whole; d += lanes) sum = Isa::fma(Isa::load(queries + d), Isa::load(key_sum + d), sum);
      if (rest > 0) sum = Isa::fma(Isa::load(queries + whole, rest), Isa::load(key_sum + whole), sum);
      inverse[i] = 1.0f / (Isa::sum(sum) + args.eps);
    }
  }

  void invert_columns(float* inverse, const float* queries, int64_t columns, const float* key_sum) const {
    for (int64_t j = 0; j < columns; j += lanes) {
      F32 sum = Isa::zero();
      for (int64_t d = 0; d < args.dim; d += column_unit) {  // by parts: one long sum would lose precision
        F32 part = Isa::zero();
        for (int64_t i = d; i < smaller(d + column_unit, args.dim); ++i)
          part = Isa::fma(Isa::load(queries + i * columns + j), Isa::splat(key_sum[i]), part);
        sum += part;
      }
      Isa::store(inverse + j, Isa::splat(1.0f) / (sum + Isa::splat(args.eps)));
    }
  }

  static constexpr int64_t dim_block = 128;
  static constexpr int64_t apply_block = 128;  // queries as fp32 beside the summary in L2
};

template <class Isa>
static const char* relu_linear_attention_kernel(const ReluLinearAttentionArgs& args, const Parallel& pool) {
  ReluLinearAttention<Isa>(args).run(pool);
  return args.out_strides[3] == 1 ? "tokens" : "channels";
}

}  // namespace fx
