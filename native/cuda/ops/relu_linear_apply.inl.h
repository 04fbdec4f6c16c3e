// Third kernel of relu_linear_attention: queries times summary, divided by the normaliser on the way out.
#pragma once

#include "relu_linear_turn.inl.h"

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
  // Of the result on its way out: rows of tokens, or of columns.
  FX_BOTH static constexpr int out_stride(bool wide, bool channel_major) {
    return (channel_major ? half_tokens : W) + (wide ? 4 : tile_padding);
  }
  static constexpr int out_elements =
      2 * (half_tokens * (W + 4) > W * (half_tokens + 4) ? half_tokens * (W + 4) : W * (half_tokens + 4));
  // The result leaves through the slot that its queries came in.
  static constexpr int slot_elements = Part::elements > out_elements ? Part::elements : out_elements;
  FX_BOTH static constexpr int bytes(int slots) { return 2 * (summary_elements + slots * slot_elements); }
};

// Copies the summary's planes of one block of dims, and the sums of keys behind them, into shared memory.
template <class Size>
FX_DEVICE void load_summary(uint16_t* to, const Work& work, int64_t head, int64_t e_block, int64_t d_block) {
  constexpr int W = Size::width;
  const uint16_t* from = work.planes + ((head * work.e_blocks + e_block) * work.d_blocks + d_block) * 3 * W * W;
  FX_UNROLL_BY(4)
  for (int i = thread_index(); i < 3 * W * W / 8; i += Size::threads)
    store_shared(to + i / (W / 8) * Size::stride + i % (W / 8) * 8, load_global(from + 8 * i));
  const uint16_t* sums = work.sum_planes + (head * work.d_blocks + d_block) * 3 * W;
  for (int i = thread_index(); i < 3 * W / 8; i += Size::threads)
    store_shared(to + 3 * W * Size::stride + 8 * i, load_global(sums + 8 * i));
}

// Rows of `length` elements of `bytes` each, from `at_shared` in shared memory to contiguous rows `out_stride` apart.
// Its callers have no registers left for it.
FX_CALLED void copy_rows(char* out, int64_t out_stride, int64_t at_shared, int stride, int rows, int length, int bytes,
                         int threads) {
  const char* from = shared_memory() + at_shared;  // a pointer that came from outside might be to any memory
  const int row_bytes = length * bytes;
  if (out_stride * bytes % 16 == 0 && row_bytes % 16 == 0) {
    const int vectors = row_bytes / 16;
    for (int i = thread_index(); i < rows * vectors; i += threads) {
      const int row = i / vectors, at = i % vectors * 16;
      store_global(out + row * out_stride * bytes + at, load_shared(from + row * stride * bytes + at));
    }
    return;
  }
  for (int i = thread_index(); i < rows * length; i += threads) {
    const int row = i / length, at = i % length;
    if (bytes == 2)
      reinterpret_cast<uint16_t*>(out)[row * out_stride + at] =
          reinterpret_cast<const uint16_t*>(from)[row * stride + at];
    else
      reinterpret_cast<float*>(out)[row * out_stride + at] = reinterpret_cast<const float*>(from)[row * stride + at];
  }
}

// One element of the result in plain fp32.
FX_DEVICE float apply_again(const Work& work, int64_t head, int64_t token, int64_t e) {
  const auto& args = work.args;
  const Source& norm_query = args.norm_query.data != nullptr ? args.norm_query : args.query;
  const int64_t q = offset_of(work, norm_query, head) + token * norm_query.strides[2];
  const float* summary = work.summary + head * work.rows() * work.columns() + e;
  const float* sums = work.key_sums + head * work.rows();
  float sum = 0, normaliser = 0;
  FX_ROLLED
  for (int64_t d = 0; d < args.dim; ++d) {
    sum += feature(work, args.query, head, token, d) * summary[d * work.columns()];
    normaliser += load_one(norm_query, q + d * norm_query.strides[3]) * sums[d];
  }
  return sum / ((normaliser < args.floor ? args.floor : normaliser) + args.eps);
}

// The sums that this lane has, of tokens r and r + 8 and of columns from c on, as the result in shared memory.
template <class Size, bool Wide, bool ChannelMajor>
FX_DEVICE void store_sums(char* shared, const float (&sums)[Size::width / 8][4], int r, int c) {
  constexpr int stride = Size::out_stride(Wide, ChannelMajor);
  const auto place = [&](int token, int e) { return ChannelMajor ? e * stride + token : token * stride + e; };
  auto* narrow = reinterpret_cast<uint16_t*>(shared);
  auto* wide = reinterpret_cast<float*>(shared);
  FX_UNROLL
  for (int n = 0; n < Size::width / 8; ++n) FX_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int token = r + 8 * half, e = 8 * n + c;
    const float left = sums[n][2 * half], right = sums[n][2 * half + 1];
    const uint32_t pair = pack_bf16(left, right);
    if constexpr (Wide)
      wide[place(token, e)] = left, wide[place(token, e + 1)] = right;
    else if constexpr (!ChannelMajor)
      *reinterpret_cast<uint32_t*>(narrow + place(token, e)) = pair;
    else
      narrow[place(token, e)] = static_cast<uint16_t>(pair),
                          narrow[place(token, e + 1)] = static_cast<uint16_t>(pair >> 16);
  }
}

// Computes again what this lane left NaN among its elements of the tokens [first, last), a warp's 16 tokens at a time.
template <class Size>
FX_DEVICE void repair(const Work& work, int64_t head, int64_t first, int64_t last, int64_t e0) {
  const auto& args = work.args;
  const int64_t base = head * args.tokens * args.dim_v;
  FX_ROLLED
  for (int64_t token = first + warp_index() * 16 + lane_index() / 4; token < last; token += 8) {
    if ((token - first) % Size::half_tokens / 16 != warp_index()) continue;
    FX_ROLLED
    for (int i = 0; i < Size::width / 4; ++i) {
      const int64_t e = e0 + i / 2 * 8 + 2 * (lane_index() % 4) + i % 2;
      if (e >= args.dim_v) break;
      const int64_t at = base + (args.channel_major ? e * args.tokens + token : token * args.dim_v + e);
      auto* narrow = static_cast<uint16_t*>(args.out) + at;
      auto* wide = static_cast<float*>(args.out) + at;
      const float value = args.wide_out ? *wide : float_of_bf16(*narrow);
      if (value == value) continue;
      const float plain = apply_again(work, head, token, e);
      if (args.wide_out)
        *wide = plain;
      else
        *narrow = static_cast<uint16_t>(pack_bf16(plain, 0.0f));
    }
  }
}

// Divides the sums of half_tokens tokens by their normalisers and writes them out, through shared memory. Returns
// whether one of this lane is NaN.
template <class Size>
FX_DEVICE bool write_out(const Work& work, float (&sums)[Size::width / 8][4], const float (&normalisers)[2],
                         char* shared, int64_t head, int64_t first, int64_t last, int64_t e0) {
  constexpr int W = Size::width;
  const auto& args = work.args;
  const int r = warp_index() * 16 + lane_index() / 4, c = 2 * (lane_index() % 4);
  bool is_nan = false;
  FX_UNROLL
  for (int half = 0; half < 2; ++half) {
    const float inverse = 1.0f / ((normalisers[half] < args.floor ? args.floor : normalisers[half]) + args.eps);
    FX_UNROLL
    for (int n = 0; n < W / 8; ++n) FX_UNROLL
    for (int i = 2 * half; i < 2 * half + 2; ++i) {
      sums[n][i] *= inverse;
      is_nan = is_nan || sums[n][i] != sums[n][i];
    }
  }
  barrier();  // whatever was in the slot is not read any more
  if (args.wide_out)
    args.channel_major ? store_sums<Size, true, true>(shared, sums, r, c)
                       : store_sums<Size, true, false>(shared, sums, r, c);
  else
    args.channel_major ? store_sums<Size, false, true>(shared, sums, r, c)
                       : store_sums<Size, false, false>(shared, sums, r, c);
  barrier();
  const int bytes = args.wide_out ? 4 : 2, stride = Size::out_stride(args.wide_out, args.channel_major);
  const int tokens = static_cast<int>(smaller(Size::half_tokens, last - first));
  const int width = static_cast<int>(smaller(W, args.dim_v - e0));
  char* out = static_cast<char*>(args.out) + head * args.tokens * args.dim_v * bytes;
  const int64_t at = shared - shared_memory();
  if (args.channel_major)
    copy_rows(out + (e0 * args.tokens + first) * bytes, args.tokens, at, stride, width, tokens, bytes, Size::threads);
  else
    copy_rows(out + (first * args.dim_v + e0) * bytes, args.dim_v, at, stride, tokens, width, bytes, Size::threads);
  return is_nan;
}

// Blocks: chunks; heads; blocks of the value's width. `InFragments`: bfloat16 queries are turned, between their
// product with the sums of keys and that with the summary.
template <int W, int Terms, bool ByToken, bool InFragments>
FX_KERNEL((Apply<W, Terms, ByToken>::threads), 1)
apply(FX_ARGUMENT(Work) work) {
  using Size = Apply<W, Terms, ByToken>;
  using Part = typename Size::Part;
  using Pairs = Products<Terms, 3>;
  static_assert(!InFragments || (Terms == 1 && !ByToken));
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

  float sums[Size::halves][W / 8][4] = {}, normalisers[Size::halves][2] = {};
  const bool ahead = work.apply_slots > 1;
  bool again = false;
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
      const Window all = window_of(step);
      Part::fill_features(slot(step), from, all, false, Turned(work, from, head, all));
    }
    barrier();

    const float* turns[Size::halves][2];  // of this lane's tokens
    if constexpr (InFragments) {
      FX_UNROLL
      for (int h = 0; h < Size::halves; ++h) FX_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int64_t token = group_of(step) + h * Size::half_tokens + row + lane_index() / 4 + 8 * i;
        turns[h][i] = turns_of(work, head) + smaller(token, args.tokens - 1) * work.rows() + step % per_group * W + c;
      }
    }
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
          normalisers[h][0] += sum.at(0), normalisers[h][1] += sum.at(2);  // all columns are the same
        }
      }
      if constexpr (InFragments) {
        FX_UNROLL
        for (int h = 0; h < Size::halves; ++h) {
          const float* const at[2] = {turns[h][0] + k, turns[h][1] + k};
          turn_fragment(a[0][h], at);
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
          again |= write_out<Size>(work, sums[h], normalisers[h], reinterpret_cast<char*>(slot(step)), head, token,
                                   last, e_block * W);
        FX_UNROLL
        for (int n = 0; n < W / 8; ++n) FX_UNROLL
        for (int i = 0; i < 4; ++i) sums[h][n][i] = 0;
        normalisers[h][0] = normalisers[h][1] = 0;
      }
    }
  }
  barrier();  // the result is in memory
  if (again) repair<Size>(work, head, first, last, e_block * W);
}

}  // namespace

}  // namespace fx
