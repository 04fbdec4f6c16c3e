// What the kernels of relu_linear_attention share: the work, and short sums on the tensor cores.
#pragma once

#include "../matrix_tile.h"
#include "relu_linear_attention.h"

namespace fx {

namespace {

struct Work {
  ReluLinearAttentionArgs args;
  int64_t d_blocks, e_blocks, chunks, chunk;
  bool split_first;  // were operands of the first product split?
  float* turns;      // [turn_batches, turn_heads, tokens, rows]: cos and sin of each pair, or null
  int64_t turn_batches, turn_heads;
  float *partial, *partial_sums;  // [heads, chunks, rows, columns] and [heads, chunks, rows]
  float *summary, *key_sums;      // [heads, rows, columns] and [heads, rows]
  uint16_t *planes, *sum_planes;  // [heads, e_blocks, d_blocks, 3, W, W] and [heads, d_blocks, 3, W]
  int64_t apply_chunk;
  int width, apply_slots;
  int shared_bytes;  // that a block may have

  FX_BOTH int64_t rows() const { return d_blocks * width; }
  FX_BOTH int64_t columns() const { return e_blocks * width; }
  FX_BOTH int64_t heads() const { return args.batch * args.heads; }
};

// Of a head of a batch entry, in elements. Both numbers are small: see most_heads.
FX_DEVICE int64_t offset_of(const Work& work, const Source& source, int64_t head) {
  const int heads = static_cast<int>(work.args.heads), index = static_cast<int>(head);
  return head_offset(source, index / heads, index % heads);
}

FX_DEVICE Window window(const Work& work, const Source& source, int64_t head, int64_t token, int64_t last,
                        int64_t column, int64_t width) {
  return {offset_of(work, source, head), token, last, column, width};
}

// A short sum on the tensor cores. With operands of three terms, products of first terms are summed apart from the
// rest: having 16 bits each, they hardly lose any.
template <int Terms>
struct SplitSum {
  static constexpr int main = Products<Terms, 3>::count - 1;
  float first[4] = {}, rest[4] = {};

  FX_DEVICE float (&of(int product))[4] { return Terms == 1 || product == main ? first : rest; }
  FX_DEVICE void add_to(float (&sums)[4]) const {
    FX_UNROLL
    for (int i = 0; i < 4; ++i) sums[i] += at(i);
  }
  FX_DEVICE float at(int i) const { return Terms == 1 ? first[i] : first[i] + rest[i]; }
};

}  // namespace

}  // namespace fx
