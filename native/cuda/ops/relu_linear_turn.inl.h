// Rotary embeddings in relu_linear_attention: pairs (2i, 2i + 1) of queries and keys are turned in registers.
//
// The angles' functions come in any dtype and strides, and are read again for every head: a kernel puts them first
// into a table of fp32, cos and sin of a pair side by side.
#pragma once

#include "relu_linear_work.h"

namespace fx {

namespace {

constexpr int tabulate_threads = 256;

// Blocks: pairs of all tokens; tables.
FX_KERNEL(tabulate_threads, 1) tabulate(FX_ARGUMENT(Work) work) {
  const Source &cos = work.args.cos, &sin = work.args.sin;
  const int64_t pairs = work.rows() / 2, index = static_cast<int64_t>(block_x()) * tabulate_threads + thread_index();
  const int64_t token = index / pairs, pair = index % pairs, table = block_y();
  if (token >= work.args.tokens) return;
  const int64_t batch = table / work.turn_heads, head = table % work.turn_heads;
  float* to = work.turns + (table * work.args.tokens + token) * work.rows() + 2 * pair;
  const bool exists = 2 * pair < work.args.dim;
  const auto at = [&](const Source& s) {
    return head_offset(s, batch, head) + token * s.strides[2] + pair * s.strides[3];
  };
  to[0] = exists ? load_one(cos, at(cos)) : 0.0f;
  to[1] = exists ? load_one(sin, at(sin)) : 0.0f;
}

// The table's row of a head's first token.
FX_DEVICE const float* turns_of(const Work& work, int64_t head) {
  const int heads = static_cast<int>(work.args.heads), index = static_cast<int>(head);
  const int64_t batch = work.turn_batches > 1 ? index / heads : 0;
  const int64_t inner = work.turn_heads > 1 ? index % heads : 0;
  return work.turns + (batch * work.turn_heads + inner) * work.args.tokens * work.rows();
}

FX_DEVICE void turn(float& x, float& y, float cos, float sin) {
  const float left = x * cos - y * sin;
  y = x * sin + y * cos;
  x = left;
}

// Turns eight of a token by their entries of the table.
FX_DEVICE void turn_eight(float (&values)[8], const Vec16& first, const Vec16& second) {
  FX_UNROLL
  for (int i = 0; i < 8; i += 2) {
    const Vec16& turns = i < 4 ? first : second;
    turn(values[i], values[i + 1], float_of_bits(turns.word[i % 4]), float_of_bits(turns.word[i % 4 + 1]));
  }
}

// For Tile::fill_features of a source in a window of one head: turned, rounded to the dtype of the source.
struct Turned {
  const float* at;  // the table's entry for the window's first token and column, or null
  int64_t stride;
  bool wide;

  FX_DEVICE Turned(const Work& work, const Source& source, int64_t head, const Window& window)
      : at(source.turned ? turns_of(work, head) + window.token * work.rows() + window.column : nullptr),
        stride(work.rows()),
        wide(source.wide) {}

  FX_DEVICE void operator()(float (&values)[8], int token, int column) const {
    if (at == nullptr) return;
    const float* turns = at + token * stride + column;
    turn_eight(values, load_global(turns), load_global(turns + 4));
    if (wide) return;
    FX_UNROLL
    for (int i = 0; i < 8; i += 2) {
      const uint32_t pair = pack_bf16(values[i], values[i + 1]);
      values[i] = float_of_bf16(pair & 0xffffu), values[i + 1] = float_of_bf16(pair >> 16);
    }
  }
};

// Turns a fragment of bfloat16 queries. `at`: the table's entry for this lane's first pair, of the fragment's first
// eight tokens and of the next.
FX_DEVICE void turn_fragment(uint32_t (&a)[4], const float* const (&at)[2]) {
  FX_UNROLL
  for (int i = 0; i < 4; ++i) {
    float turns[2];
    load_two(turns, at[i % 2] + i / 2 * 8);
    float x = float_of_bf16(a[i] & 0xffffu), y = float_of_bf16(a[i] >> 16);
    turn(x, y, turns[0], turns[1]);
    a[i] = pack_bf16(x, y);
  }
}

// One feature of a token, as the numerator takes it.
FX_DEVICE float feature(const Work& work, const Source& source, int64_t head, int64_t token, int64_t d) {
  const int64_t of_token = offset_of(work, source, head) + token * source.strides[2];
  if (!source.turned) return load_one(source, of_token + d * source.strides[3]);
  const int64_t even = d / 2 * 2;
  const float* turns = turns_of(work, head) + token * work.rows() + even;
  float x = load_one(source, of_token + even * source.strides[3]);
  float y = load_one(source, of_token + (even + 1) * source.strides[3]);
  turn(x, y, turns[0], turns[1]);
  const float turned = d == even ? x : y;
  return source.wide ? turned : float_of_bf16(pack_bf16(turned, 0.0f) & 0xffffu);
}

}  // namespace

}  // namespace fx
