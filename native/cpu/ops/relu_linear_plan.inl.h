// How a call of `relu_linear_attention` is cut up: tokens into chunks, heads into groups, features into rows.
#pragma once

#include "../caches.h"
#include "../engine/gemm.inl.h"
#include "relu_linear_attention.h"
#include "token_block.inl.h"

namespace fx {

// Tokens are cut into chunks by their number alone, so the result does not depend on threads.
template <class Isa>
struct ReluLinearPlan {
  static constexpr int64_t block = 128;  // tokens at a time: longer sums in one register would lose precision
  static constexpr int64_t least_chunk = 1024, most_chunks = 16;
  static constexpr int64_t long_read = 2048;  // bytes, after which rows that lie apart are read at memory's speed

  const ReluLinearAttentionArgs& args;
  int64_t width;  // of a row of features, in whole vectors
  int64_t chunk, chunks;
  int64_t summary_size;  // of a chunk: Σ φ(k)ᵀ v, then Σ φ'(k)
  int64_t applied_size;  // of a head's summary, packed
  bool channel_major;

  explicit ReluLinearPlan(const ReluLinearAttentionArgs& arguments) : args(arguments) {
    width = round_up(args.dim, column_unit);
    chunk = larger(least_chunk, round_up(divide_up(args.tokens, most_chunks), block));
    chunks = divide_up(args.tokens, chunk);
    channel_major = args.out_strides[3] != 1;
    summary_size = args.dim * args.dim_v + width;
    applied_size = static_cast<int64_t>(gemm::packed_bytes<Isa, float>(args.dim, args.dim_v) / sizeof(float));
    if (channel_major) applied_size = 0;
  }

  // Enough heads together that their tokens make long reads; but their summaries in half of L2, and work for all
  // threads. Groups are of one size, give or take a head: threads get equal numbers of them.
  int64_t heads_together(int threads) const {
    const int64_t item = args.key.dtype == Dtype::bfloat16 ? 2 : 4;
    int64_t group = smaller(divide_up(long_read, args.dim * item), args.heads);
    group = smaller(group, caches().l2 / 2 / (args.dim * args.dim_v * static_cast<int64_t>(sizeof(float))));
    if (threads > 1) group = smaller(group, args.batch * args.heads * chunks / (4 * threads));
    return divide_up(args.heads, divide_up(args.heads, larger(1, group)));
  }

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
};

}  // namespace fx
