// Third kernel of relu_linear_attention: queries times summary, divided by the normaliser on the way out.
#pragma once

#include "relu_linear_work.h"

namespace fx {

namespace {

// Sizes of the applying blocks: a warp has `halves` times 16 tokens, and all columns.
template <int W, int Terms, bool ByToken>
struct Apply {
  static constexpr int width = W;
  static constexpr int halves = W > 64 && Terms == 1 ? 2 : 1;  // two share what is read of the summary
  static constexpr int half_tokens = W == 112 ? 112 : Terms > 1 ? 64 : 128;
  static constexpr int tokens = halves * half_tokens, threads = 2 * half_tokens;
  static constexpr int stride = W + tile_padding;  // of the summary's rows in shared memory
  using Part = Tile<tokens, W, threads, Terms, ByToken>;
  static constexpr int summary_elements = 3 * W * stride + 3 * W;
  static constexpr int fp32_rows = W + 4, fp32_columns = half_tokens + 4;  // strides of the result on its way out
  static constexpr int out_elements =
      2 * (half_tokens * fp32_rows > W * fp32_columns ? half_tokens * fp32_rows : W * fp32_columns);
  // The result leaves through the slot that its queries came in.
  static constexpr int slot_elements = Part::elements > out_elements ? Part::elements : out_elements;
  FX_BOTH static constexpr int bytes(int slots) { return 2 * (summary_elements + slots * slot_elements); }
};

FX_RARELY float apply_again(const Work& work, int64_t head, int64_t token, int64_t e) {
  const Source& query = work.args.query;
  const int64_t q = head_offset(query, head / work.args.heads, head % work.args.heads) + token * query.strides[2];
  const float* summary = work.summary + head * work.rows() * work.columns() + e;
  float sum = 0;
  for (int64_t d = 0; d < work.args.dim; ++d)
    sum += load_one(query, q + d * query.strides[3]) * summary[d * work.columns()];
  return sum;
}

FX_RARELY float normalise_again(const Work& work, int64_t head, int64_t token) {
  const Source& query = work.args.norm_query.data != nullptr ? work.args.norm_query : work.args.query;
  const int64_t q = head_offset(query, head / work.args.heads, head % work.args.heads) + token * query.strides[2];
  const float* sums = work.key_sums + head * work.rows();
  float sum = 0;
  for (int64_t d = 0; d < work.args.dim; ++d) sum += load_one(query, q + d * query.strides[3]) * sums[d];
  return sum;
}

// Copies the summary's planes of one block of dims, and the sums of keys behind them, into shared memory.
template <class Size>
FX_DEVICE void load_summary(uint16_t* to, const Work& work, int64_t head, int64_t e_block, int64_t d_block) {
  constexpr int W = Size::width;
  const uint16_t* from = work.planes + ((head * work.e_blocks + e_block) * work.d_blocks + d_block) * 3 * W * W;
  for (int i = thread_index(); i < 3 * W * W / 8; i += Size::threads)
    store_shared(to + i / (W / 8) * Size::stride + i % (W / 8) * 8, load_global(from + 8 * i));
  const uint16_t* sums = work.sum_planes + (head * work.d_blocks + d_block) * 3 * W;
  for (int i = thread_index(); i < 3 * W / 8; i += Size::threads)
    store_shared(to + 3 * W * Size::stride + 8 * i, load_global(sums + 8 * i));
}

// Rows of `length` elements of `bytes` each, from shared memory to contiguous rows `out_stride` apart.
FX_DEVICE void copy_rows(char* out, int64_t out_stride, const char* from, int stride, int64_t rows, int64_t length,
                         int bytes, int threads) {
  const int64_t row_bytes = length * bytes;
  if (out_stride * bytes % 16 == 0 && row_bytes % 16 == 0) {
    const int64_t vectors = row_bytes / 16;
    for (int64_t i = thread_index(); i < rows * vectors; i += threads) {
      const int64_t row = i / vectors, at = i % vectors * 16;
      store_global(out + row * out_stride * bytes + at, load_shared(from + row * stride * bytes + at));
    }
    return;
  }
  for (int64_t i = thread_index(); i < rows * length; i += threads) {
    const int64_t row = i / length, at = i % length;
    if (bytes == 2)
      reinterpret_cast<uint16_t*>(out)[row * out_stride + at] =
          reinterpret_cast<const uint16_t*>(from)[row * stride + at];
    else
      reinterpret_cast<float*>(out)[row * out_stride + at] = reinterpret_cast<const float*>(from)[row * stride + at];
  }
}

// Divides the sums of half_tokens tokens by their normalisers and writes them out, through shared memory.
template <class Size>
FX_DEVICE void write_out(const Work& work, float (&sums)[Size::width / 8][4], const float (&normalisers)[4],
                         char* shared, int64_t head, int64_t first, int64_t last, int64_t e0) {
  constexpr int W = Size::width;
  const auto& args = work.args;
  const int r = warp_index() * 16 + lane_index() / 4, c = 2 * (lane_index() % 4);
  FX_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int64_t token = first + r + 8 * half;
    float normaliser = normalisers[2 * half];
    if (token < last && normaliser != normaliser) normaliser = normalise_again(work, head, token);
    const float inverse = 1.0f / ((normaliser < args.floor ? args.floor : normaliser) + args.eps);
    FX_UNROLL
    for (int n = 0; n < W / 8; ++n) FX_UNROLL
    for (int i = 2 * half; i < 2 * half + 2; ++i) {
      const int64_t e = e0 + 8 * n + c + i % 2;
      if (sums[n][i] != sums[n][i] && token < last && e < args.dim_v) sums[n][i] = apply_again(work, head, token, e);
      sums[n][i] *= inverse;
    }
  }
  barrier();  // whatever was in the slot is not read any more
  auto* narrow = reinterpret_cast<uint16_t*>(shared);
  auto* wide = reinterpret_cast<float*>(shared);
  constexpr int rows = W + tile_padding, columns = Size::half_tokens + tile_padding;
  FX_UNROLL
  for (int n = 0; n < W / 8; ++n) FX_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int token = r + 8 * half, e = 8 * n + c;
    const float left = sums[n][2 * half], right = sums[n][2 * half + 1];
    if (args.wide_out && args.channel_major) {
      wide[e * Size::fp32_columns + token] = left, wide[(e + 1) * Size::fp32_columns + token] = right;
    } else if (args.wide_out) {
      wide[token * Size::fp32_rows + e] = left, wide[token * Size::fp32_rows + e + 1] = right;
    } else {
      const uint32_t pair = pack_bf16(left, right);
      if (args.channel_major) {
        narrow[e * columns + token] = static_cast<uint16_t>(pair);
        narrow[(e + 1) * columns + token] = static_cast<uint16_t>(pair >> 16);
      } else {
        *reinterpret_cast<uint32_t*>(narrow + token * rows + e) = pair;
      }
    }
  }
  barrier();
  const int bytes = args.wide_out ? 4 : 2;
  const int64_t tokens = smaller(Size::half_tokens, last - first), width = smaller(W, args.dim_v - e0);
  char* out = static_cast<char*>(args.out) + head * args.tokens * args.dim_v * bytes;
  if (args.channel_major)
    copy_rows(out + (e0 * args.tokens + first) * bytes, args.tokens, shared,
              args.wide_out ? Size::fp32_columns : columns, width, tokens, bytes, Size::threads);
  else
    copy_rows(out + (first * args.dim_v + e0) * bytes, args.dim_v, shared, args.wide_out ? Size::fp32_rows : rows,
              tokens, width, bytes, Size::threads);
}

// Blocks: chunks; heads; blocks of the value's width.
template <int W, int Terms, bool ByToken>
FX_KERNEL((Apply<W, Terms, ByToken>::threads), 1)
apply(FX_ARGUMENT(Work) work) {
  using Size = Apply<W, Terms, ByToken>;
  using Part = typename Size::Part;
  using Pairs = Products<Terms, 3>;
  const auto& args = work.args;
  const int64_t head = block_y(), e_block = block_z();
  const int64_t first = block_x() * work.apply_chunk, last = smaller(first + work.apply_chunk, args.tokens);
  auto* summary = reinterpret_cast<uint16_t*>(shared_memory());
  const uint16_t* key_sums = summary + 3 * W * Size::stride;
  uint16_t* slots = summary + Size::summary_elements;
  const int row = warp_index() * 16, c = 2 * (lane_index() % 4);

  // What passes through the slots: of each group of tokens, of each block of dims, norm queries and queries.
  const bool separate = args.norm_query.data != nullptr;
  const int parts = separate ? 2 : 1, per_group = static_cast<int>(work.d_blocks) * parts;
  const int steps = static_cast<int>(divide_up(last - first, Size::tokens)) * per_group;
  const auto slot = [&](int step) { return slots + step % work.apply_slots * Size::slot_elements; };
  const auto source = [&](int step) -> const Source& {
    return separate && step % 2 == 0 ? args.norm_query : args.query;
  };
  const auto group_of = [&](int step) { return first + static_cast<int64_t>(step / per_group) * Size::tokens; };
  const auto window_of = [&](int step) {
    return window(work, source(step), head, group_of(step), last, step % per_group / parts * W, args.dim);
  };
  const auto start = [&](int step) {
    if constexpr (Terms == 1) {
      if (step < steps) Part::fill(slot(step), source(step), window_of(step));
      commit_copies();
    }
  };

  float sums[Size::halves][W / 8][4] = {}, normalisers[Size::halves][4] = {};
  const bool ahead = work.apply_slots > 1;
  if (ahead) start(0);
  for (int step = 0; step < steps; ++step) {
    const Source& from = source(step);
    const uint16_t* tile = slot(step);
    barrier();
    if (step == 0 || (work.d_blocks > 1 && step % parts == 0))
      load_summary<Size>(summary, work, head, e_block, step % per_group / parts);
    if constexpr (Terms == 1) {
      start(ahead ? step + 1 : step);
      if (ahead)
        wait_for_copies<1>();
      else
        wait_for_copies<0>();
    } else {
      Part::fill_split(slot(step), from, window_of(step));
    }
    barrier();

    const bool of_normaliser = !separate || step % 2 == 0, of_numerator = !separate || step % 2 == 1;
    FX_ROLLED
    for (int k = 0; k < W; k += 16) {
      uint32_t a[Terms][Size::halves][4];
      FX_UNROLL
      for (int t = 0; t < Terms; ++t) FX_UNROLL
      for (int h = 0; h < Size::halves; ++h) {
        load_a<ByToken>(a[t][h], tile + t * Part::plane, Part::stride, h * Size::half_tokens + row, k);
        if (Terms == 1 && from.relu) apply_relu(a[t][h]);
      }
      if (of_normaliser) {
        FX_UNROLL
        for (int h = 0; h < Size::halves; ++h) {
          SplitSum<Terms> sum;
          FX_UNROLL
          for (int p = 0; p < Pairs::count; ++p) {
            const auto* b = reinterpret_cast<const uint32_t*>(key_sums + Pairs::b(p) * W + k + c);
            multiply_add(sum.of(p), a[Pairs::a(p)][h], b[0], b[4]);
          }
          sum.add_to(normalisers[h]);
        }
      }
      if (of_numerator) {
        FX_UNROLL
        for (int pair = 0; pair < W / 16; ++pair) {
          uint32_t b[3][4];
          FX_UNROLL
          for (int t = 0; t < 3; ++t) load_b<true>(b[t], summary + t * W * Size::stride, Size::stride, k, 16 * pair);
          FX_UNROLL
          for (int h = 0; h < Size::halves; ++h) {
            SplitSum<Terms> sum[2];
            FX_UNROLL
            for (int p = 0; p < Pairs::count; ++p) {
              const uint32_t (&terms)[4] = b[Pairs::b(p)];
              multiply_add(sum[0].of(p), a[Pairs::a(p)][h], terms[0], terms[1]);
              multiply_add(sum[1].of(p), a[Pairs::a(p)][h], terms[2], terms[3]);
            }
            sum[0].add_to(sums[h][2 * pair]), sum[1].add_to(sums[h][2 * pair + 1]);
          }
        }
      }
    }
    if ((step + 1) % per_group == 0) {
      FX_UNROLL
      for (int h = 0; h < Size::halves; ++h) {
        const int64_t token = group_of(step) + h * Size::half_tokens;
        if (token < last)
          write_out<Size>(work, sums[h], normalisers[h], reinterpret_cast<char*>(slot(step)), head, token, last,
                          e_block * W);
        FX_UNROLL
        for (int n = 0; n < W / 8; ++n) FX_UNROLL
        for (int i = 0; i < 4; ++i) sums[h][n][i] = 0;
        FX_UNROLL
        for (int i = 0; i < 4; ++i) normalisers[h][i] = 0;
      }
    }
  }
}

}  // namespace

}  // namespace fx
