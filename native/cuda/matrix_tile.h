// Tiles of bfloat16 in shared memory: filled from strided tensors, read as fragments of the tensor cores.
#pragma once

#include "numbers.h"
#include "source.h"

namespace fx {

// Rows of a tile are padded by these many elements: fragments are then read without bank conflicts.
constexpr int tile_padding = 8;

// Part of a source: the tokens and the width of one head, from (token, column) on.
struct Window {
  int64_t head_offset;  // of the batch entry and head, in elements
  int64_t token, tokens;
  int64_t column, width;  // what lies beyond `tokens` and `width` is zero
};

FX_DEVICE int64_t head_offset(const Source& source, int64_t batch, int64_t head) {
  return batch * source.strides[0] + head * source.strides[1];
}

// Where the eight elements are that start at (token, column) of the window and go along the tokens or the width,
// how many of them exist, and whether all may be loaded at once.
struct Eight {
  int64_t at, step;
  int count;
  bool at_once;
};

FX_DEVICE Eight locate(const Source& source, const Window& window, int token, int column, bool by_token) {
  const int64_t t = window.token + token, c = window.column + column;
  Eight eight{window.head_offset + t * source.strides[2] + c * source.strides[3],
              by_token ? source.strides[2] : source.strides[3], 0, false};
  if (t < window.tokens && c < window.width) {
    const int64_t left = by_token ? window.tokens - t : window.width - c;
    eight.count = left < 8 ? static_cast<int>(left) : 8;
    eight.at_once = left >= 8 && source.vectors && source.by_token == by_token;
  }
  return eight;
}

// Of a bfloat16 source, as they are.
FX_DEVICE Vec16 load_narrow(const Source& source, const Eight& eight) {
  const auto* data = static_cast<const uint16_t*>(source.data) + eight.at;
  if (eight.at_once) return load_streamed(data);
  Vec16 out{};
  FX_UNROLL
  for (int i = 0; i < 8; ++i)
    if (i < eight.count) out.word[i / 2] |= static_cast<uint32_t>(data[i * eight.step]) << (16 * (i % 2));
  return out;
}

FX_DEVICE void widen(float (&out)[8], const Vec16& narrow) {
  FX_UNROLL
  for (int i = 0; i < 8; ++i) out[i] = float_of_bf16(narrow.word[i / 2] >> (16 * (i % 2)) & 0xffffu);
}

FX_DEVICE void apply_relu(float (&values)[8]) {
  FX_UNROLL
  for (int i = 0; i < 8; ++i) values[i] = values[i] < 0.0f ? 0.0f : values[i];  // NaN stays
}

// Of either dtype, as fp32, ReLU applied.
FX_DEVICE void load_wide(float (&out)[8], const Source& source, const Eight& eight) {
  if (!source.wide) {
    widen(out, load_narrow(source, eight));
  } else {
    const auto* data = static_cast<const float*>(source.data) + eight.at;
    if (eight.at_once) {
      const Vec16 low = load_streamed(data), high = load_streamed(data + 4);
      FX_UNROLL
      for (int i = 0; i < 4; ++i) out[i] = float_of_bits(low.word[i]), out[4 + i] = float_of_bits(high.word[i]);
    } else {
      FX_UNROLL
      for (int i = 0; i < 8; ++i) out[i] = i < eight.count ? data[i * eight.step] : 0.0f;
    }
  }
  if (source.relu) apply_relu(out);
}

// One element of either dtype, as fp32, ReLU applied.
FX_DEVICE float load_one(const Source& source, int64_t at) {
  const float x = source.wide ? static_cast<const float*>(source.data)[at]
                              : float_of_bf16(static_cast<const uint16_t*>(source.data)[at]);
  return source.relu && x < 0.0f ? 0.0f : x;
}

// A [Tokens, Width] tile of a source, in Terms planes of bfloat16 that add up to it. Its rows are tokens or, with
// `ByToken`, columns of the width.
template <int Tokens, int Width, int Threads, int Terms, bool ByToken>
struct Tile {
  static constexpr int stride = (ByToken ? Tokens : Width) + tile_padding;
  static constexpr int plane = (ByToken ? Width : Tokens) * stride;
  static constexpr int elements = Terms * plane;
  static_assert(Tokens * Width % (8 * Threads) == 0, "every thread has the same share");
  static_assert(8 * Threads % Width == 0 && 8 * Threads % Tokens == 0, "a thread stays in its column");

  // One term, of a bfloat16 source. Loads may only be started: wait_for_copies() says when they are done.
  // ReLU is left to whoever reads the tile.
  FX_DEVICE static void fill(uint16_t* tile, const Source& source, const Window& window) {
    static_assert(Terms == 1);
    if (source.vectors && source.by_token != ByToken) {
      for_each_eight<!ByToken>([&](int token, int column) {
        const Vec16 values = load_narrow(source, locate(source, window, token, column, !ByToken));
        uint16_t* to = tile + (ByToken ? column * stride + token : token * stride + column);
        FX_UNROLL
        for (int i = 0; i < 8; ++i) to[i * stride] = static_cast<uint16_t>(values.word[i / 2] >> (16 * (i % 2)));
      });
      return;
    }
    for_each_eight<ByToken>([&](int token, int column) {
      const Eight eight = locate(source, window, token, column, ByToken);
      uint16_t* to = tile + (ByToken ? column * stride + token : token * stride + column);
      if (source.vectors)
        copy_async(to, static_cast<const uint16_t*>(source.data) + (eight.count > 0 ? eight.at : 0), 2 * eight.count);
      else
        store_shared(to, load_narrow(source, eight));
    });
  }

  // Of either dtype, ReLU applied: three terms, or one that is rounded to nearest. change(values, token, column) may
  // change the values of a token before that; it is not called where eights go along tokens, as those of a source
  // do whose neighbours in memory are tokens, unless it is turned. `in_place`: fill() has put a bfloat16 source
  // into the tile, and its copies have come.
  template <class Change>
  FX_DEVICE static void fill_features(uint16_t* tile, const Source& source, const Window& window, bool in_place,
                                      const Change& change) {
    static_assert(!ByToken);
    if (source.by_token && !source.turned)
      for_each_eight<true>([&](int token, int column) {
        float values[8];
        load_wide(values, source, locate(source, window, token, column, true));
        FX_UNROLL
        for (int e = 0; e < 8; ++e) {
          uint32_t terms[3];
          terms_of(values[e], terms);
          FX_UNROLL
          for (int t = 0; t < Terms; ++t)
            tile[t * plane + (token + e) * stride + column] = static_cast<uint16_t>(terms[t]);
        }
      });
    else
      for_each_eight<false>([&](int token, int column) {
        uint16_t* to = tile + token * stride + column;
        const Eight eight = locate(source, window, token, column, false);
        float values[8];
        if (in_place) {
          widen(values, load_shared(to));
          if (source.relu) apply_relu(values);
        } else {
          load_wide(values, source, eight);
        }
        if (eight.count > 0) change(values, token, column);
        Vec16 terms[Terms];
        FX_UNROLL
        for (int e = 0; e < 8; e += 2) {
          if constexpr (Terms == 1) {
            terms[0].word[e / 2] = pack_bf16(values[e], values[e + 1]);
          } else {
            uint32_t left[3], right[3];
            split(values[e], left), split(values[e + 1], right);
            FX_UNROLL
            for (int t = 0; t < 3; ++t) terms[t].word[e / 2] = left[t] | right[t] << 16;
          }
        }
        FX_UNROLL
        for (int t = 0; t < Terms; ++t) store_shared(to + t * plane, terms[t]);
      });
  }

  // visit(token, column) where each eight of this thread starts.
  template <bool AlongTokens, class Visit>
  FX_DEVICE static void for_each_eight(const Visit& visit) {
    constexpr int count = Tokens * Width / (8 * Threads), rows = 8 * Threads / (AlongTokens ? Tokens : Width);
    constexpr int eights = (AlongTokens ? Tokens : Width) / 8;  // of a row
    const int row = thread_index() / eights, at = thread_index() % eights * 8;
    FX_UNROLL_BY((Terms > 1 || Width > 64 ? 2 : count))
    for (int i = 0; i < count; ++i) AlongTokens ? visit(at, row + i * rows) : visit(row + i * rows, at);
  }

 private:
  FX_DEVICE static void terms_of(float value, uint32_t (&terms)[3]) {
    if constexpr (Terms == 1)
      terms[0] = pack_bf16(value, 0.0f) & 0xffffu;
    else
      split(value, terms);
  }
};

// The fragment a[16, 16] whose first element is (m, k). RowsOfK: a row of the tile holds one k for all m,
// else one m for all k.
template <bool RowsOfK>
FX_DEVICE void load_a(uint32_t (&a)[4], const uint16_t* tile, int stride, int m, int k) {
  const int lane = lane_index();
  if constexpr (RowsOfK)
    load_matrices_transposed(a, tile + (k + lane % 8 + lane / 16 * 8) * stride + m + lane / 8 % 2 * 8);
  else
    load_matrices(a, tile + (m + lane % 16) * stride + k + lane / 16 * 8);
}

FX_DEVICE void apply_relu(uint32_t (&a)[4]) {
  FX_UNROLL
  for (int i = 0; i < 4; ++i) a[i] = relu_bf16(a[i]);
}

// The fragments of b[16, 8] at (k, n), in b[0] and b[1], and at (k, n + 8), in b[2] and b[3].
template <bool RowsOfK>
FX_DEVICE void load_b(uint32_t (&b)[4], const uint16_t* tile, int stride, int k, int n) {
  const int lane = lane_index();
  if constexpr (RowsOfK)
    load_matrices_transposed(b, tile + (k + lane % 16) * stride + n + lane / 16 * 8);
  else
    load_matrices(b, tile + (n + lane % 8 + lane / 16 * 8) * stride + k + lane / 8 % 2 * 8);
}

}  // namespace fx
