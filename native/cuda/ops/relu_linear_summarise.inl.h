// First kernel of relu_linear_attention: φ(k)ᵀ v and the normaliser's sum of keys, over chunks of tokens.
#pragma once

#include "relu_linear_turn.inl.h"

namespace fx {

namespace {

constexpr uint32_t two_ones = 0x3f803f80;  // bfloat16

// Sizes of the summarising blocks of one width.
template <int W>
struct Summarise {
  static constexpr int row_tiles = W / 16;                          // a warp for each ...
  static constexpr int groups = row_tiles > 4 ? 1 : 8 / row_tiles;  // ... in as many groups as fill a block
  static constexpr int threads = 32 * row_tiles * groups;
  static constexpr int group_tokens = W > 64 ? 64 : 32;
  static constexpr int tokens = group_tokens * groups;  // at a time
  // Slots for tiles: all but one are on their way. What is prepared brings its angles along.
  FX_BOTH static constexpr int slots(int terms, bool prepared) { return terms > 1 ? 1 : prepared ? 2 : 3; }
  FX_BOTH static constexpr int angles(bool prepared) { return prepared ? tokens * W : 0; }
};

// What the threads of a block have of their eight columns of W, as one sum for each column.
template <int W>
FX_DEVICE void add_up_columns(const float (&sums)[8], float* to) {
  constexpr int parts = Summarise<W>::threads / (W / 8);
  static_assert(Summarise<W>::threads % (W / 8) == 0);
  auto* shared = reinterpret_cast<float*>(shared_memory());  // [parts, W]
  const int thread = thread_index();
  barrier();  // whatever was there is not read any more
  FX_UNROLL
  for (int i = 0; i < 8; ++i) shared[8 * thread + i] = sums[i];
  barrier();
  if (thread >= W) return;
  float sum = 0;
  for (int part = 0; part < parts; ++part) sum += shared[part * W + thread];
  to[thread] = sum;
}

// Σ norm_k over a chunk, for the columns d0 on.
template <int W>
FX_CALLED void sum_columns(const Work& work, int64_t head, int64_t d0) {
  constexpr int threads = Summarise<W>::threads;
  const Source& source = work.args.norm_key;
  const int64_t first = block_x() * work.chunk, last = smaller(first + work.chunk, work.args.tokens);
  const Window from = window(work, source, head, first, last, d0, work.args.dim);
  float* to = work.partial_sums + (head * work.chunks + block_x()) * work.rows() + d0;
  const int thread = thread_index();
  if (source.by_token) {                                       // `parts` threads share a column
    auto* shared = reinterpret_cast<float*>(shared_memory());  // [parts, W]
    const int parts = threads / W;
    const int column = thread / parts, part = thread % parts;
    float sum = 0;
    if (column < W) {
      for (int token = 8 * part; token < last - first; token += 8 * parts) {
        float eight[8];
        load_wide(eight, source, locate(source, from, token, column, source.by_token));
        float all = 0;
        FX_UNROLL
        for (int i = 0; i < 8; ++i) all += eight[i];
        sum += all;
      }
      shared[part * W + column] = sum;
    }
    barrier();
    if (thread < W) {
      float sum = 0;
      for (int p = 0; p < parts; ++p) sum += shared[p * W + thread];
      to[thread] = sum;
    }
  } else {  // a thread has eight columns of each `parts`-th token
    constexpr int parts = threads / (W / 8);
    const int column = thread % (W / 8) * 8, part = thread / (W / 8);
    float sums[8] = {};
    for (int token = part; token < last - first; token += parts) {
      float eight[8];
      load_wide(eight, source, locate(source, from, token, column, source.by_token));
      FX_UNROLL
      for (int i = 0; i < 8; ++i) sums[i] += eight[i];
    }
    add_up_columns<W>(sums, to);
  }
}

// Adds the products of one group's tokens of the tiles to `sums`, and with `SumsKeys` the keys to `key_sums`.
template <int W, int Terms, bool ByToken, bool SumsKeys>
FX_DEVICE void add_tokens(float (&sums)[W / 8][4], float (&key_sums)[4], const uint16_t* keys, bool relu,
                          const uint16_t* values, int row, int token) {
  using Size = Summarise<W>;
  using Part = Tile<Size::tokens, W, Size::threads, Terms, ByToken>;
  using Pairs = Products<Terms, Terms>;
  constexpr int steps = Terms == 1 && W <= 64 && SumsKeys ? 2 : 1;  // of 16 tokens, added up by the tensor cores
  FX_UNROLL_BY((W > 64 ? 1 : 4))                                    // registers
  for (int first = 0; first < Size::group_tokens; first += 16 * steps) {
    uint32_t a[Terms][steps][4];
    FX_UNROLL
    for (int t = 0; t < Terms; ++t) FX_UNROLL
    for (int s = 0; s < steps; ++s) {
      load_a<!ByToken>(a[t][s], keys + t * Part::plane, Part::stride, row, token + first + 16 * s);
      if (Terms == 1 && relu) apply_relu(a[t][s]);
    }
    FX_UNROLL
    for (int pair = 0; pair < W / 16; ++pair) {
      SplitSum<Terms> c[2];
      FX_UNROLL
      for (int p = 0; p < Pairs::count; ++p) FX_UNROLL
      for (int s = 0; s < steps; ++s) {
        uint32_t b[4];
        load_b<!ByToken>(b, values + Pairs::b(p) * Part::plane, Part::stride, token + first + 16 * s, 16 * pair);
        multiply_add(c[0].of(p), a[Pairs::a(p)][s], b[0], b[1]);
        multiply_add(c[1].of(p), a[Pairs::a(p)][s], b[2], b[3]);
      }
      c[0].add_to(sums[2 * pair]), c[1].add_to(sums[2 * pair + 1]);
    }
    if constexpr (SumsKeys) {
      SplitSum<Terms> c;
      FX_UNROLL
      for (int t = Terms - 1; t >= 0; --t) FX_UNROLL
      for (int s = 0; s < steps; ++s) multiply_add(t == 0 ? c.first : c.rest, a[t][s], two_ones, two_ones);
      c.add_to(key_sums);
    }
  }
}

template <int W, int Terms, bool ByToken, bool Prepared>
constexpr int summarise_bytes() {
  using Size = Summarise<W>;
  const int tile = 2 * Tile<Size::tokens, W, Size::threads, Terms, ByToken>::elements;
  const int tiles = Size::slots(Terms, Prepared) * (2 * tile + 4 * Size::angles(Prepared));
  const int sums = Size::groups > 1 ? 4 * Size::groups * W * (W + 1) : 0;
  const int columns = 4 * 8 * Size::threads;  // of sum_columns
  return tiles > sums ? (tiles > columns ? tiles : columns) : (sums > columns ? sums : columns);
}

struct AsTheyAre {
  FX_DEVICE void operator()(float (&)[8], int, int) const {}
};

// Blocks: chunks; heads; blocks of the summary, and behind them, with norm keys, blocks of their sums.
// `Prepared`: keys are turned, or keys or values rounded, by the threads, in the tiles; they then add up the keys
// as they were before, of which each has eight columns.
template <int W, int Terms, bool ByToken, bool Prepared>
FX_KERNEL(Summarise<W>::threads, (Terms == 1 && !(Prepared && W > 64) ? 2 : 1))
summarise(FX_ARGUMENT(Work) work) {
  using Size = Summarise<W>;
  using Part = Tile<Size::tokens, W, Size::threads, Terms, ByToken>;
  static_assert(!Prepared || (Terms == 1 && !ByToken));
  const int64_t head = block_y();
  const int64_t part = block_z(), parts = work.d_blocks * work.e_blocks;
  if (part >= parts) return sum_columns<W>(work, head, (part - parts) * W);

  const Source &key = work.args.key, &value = work.args.value;
  const int64_t d0 = part / work.e_blocks * W, e0 = part % work.e_blocks * W;
  const int64_t first = block_x() * work.chunk, last = smaller(first + work.chunk, work.args.tokens);
  const int steps = static_cast<int>(divide_up(last - first, Size::tokens));
  auto* tiles = reinterpret_cast<uint16_t*>(shared_memory());  // of keys, values and angles, for each slot
  constexpr int slots = Size::slots(Terms, Prepared), slot_elements = 2 * (Part::elements + Size::angles(Prepared));
  const auto keys_of = [&](int step) { return tiles + step % slots * slot_elements; };
  const auto values_of = [&](int step) { return keys_of(step) + Part::elements; };
  const auto angles_of = [&](int step) { return reinterpret_cast<float*>(values_of(step) + Part::elements); };
  const auto keys_window = [&](int step) {
    return window(work, key, head, first + static_cast<int64_t>(step) * Size::tokens, last, d0, work.args.dim);
  };
  const auto values_window = [&](int step) {
    return window(work, value, head, first + static_cast<int64_t>(step) * Size::tokens, last, e0, work.args.dim_v);
  };
  const int row = warp_index() % Size::row_tiles * 16, group = warp_index() / Size::row_tiles;

  float sums[W / 8][4] = {}, key_sums[4] = {}, column_sums[8] = {};
  // Which come by copies that are started ahead; the others, and what is done to the keys, wait for their turn.
  const bool keys_come = !Prepared || (!key.wide && !key.by_token), values_come = !Prepared || !value.wide;
  const auto start_angles = [&](int step) {
    const Window window = keys_window(step);
    const float* from = turns_of(work, head) + window.token * work.rows() + d0;
    Part::template for_each_eight<false>([&](int token, int column) {
      const int bytes = window.token + token < last ? 16 : 0;
      const float* at = bytes > 0 ? from + token * work.rows() + column : from;
      float* to = angles_of(step) + token * W + column;
      copy_async(to, at, bytes), copy_async(to + 4, at + 4, bytes);
    });
  };
  const auto start = [&](int step) {
    if constexpr (Terms == 1) {
      if (step < steps) {
        if (keys_come) Part::fill(keys_of(step), key, keys_window(step));
        if (values_come) Part::fill(values_of(step), value, values_window(step));
        if (Prepared && key.turned) start_angles(step);
      }
      commit_copies();
    }
  };
  const auto prepare = [&](auto step) {
    const float* angles = angles_of(step);
    const auto sum_and_turn = [&](float (&eight)[8], int token, int column) {
      FX_UNROLL
      for (int i = 0; i < 8; ++i) column_sums[i] += eight[i];
      const float* at = angles + token * W + column;
      if (key.turned) turn_eight(eight, load_shared(at), load_shared(at + 4));
    };
    Part::fill_features(keys_of(step), key, keys_window(step), keys_come, sum_and_turn);
    if (!values_come) Part::fill_features(values_of(step), value, values_window(step), false, AsTheyAre());
  };
  FX_UNROLL
  for (int step = 0; step < slots - 1; ++step) start(step);
  for (int step = 0; step < steps; ++step) {
    if constexpr (Terms == 1) {
      wait_for_copies<slots - 2>();
      if constexpr (Prepared) prepare(step);  // of what was copied, a thread changes what it copied itself
      barrier();  // this step's tiles are there, and those of the last are not read any more
      start(step + slots - 1);
    } else {
      const Window of_keys = keys_window(step);
      barrier();
      Part::fill_features(keys_of(step), key, of_keys, false, Turned(work, key, head, of_keys));
      Part::fill_features(values_of(step), value, values_window(step), false, AsTheyAre());
      barrier();
    }
    add_tokens<W, Terms, ByToken, !Prepared>(sums, key_sums, keys_of(step), key.relu && !Prepared, values_of(step), row,
                                             Size::group_tokens * group);
  }

  // This lane has, of each 16x8 tile, the elements (r, c), (r, c + 1), (r + 8, c), (r + 8, c + 1).
  const int r = row + lane_index() / 4, c = 2 * (lane_index() % 4);
  const int64_t chunk = head * work.chunks + block_x();
  float* to = work.partial + chunk * work.rows() * work.columns() + d0 * work.columns() + e0;
  float* sums_to = work.partial_sums + chunk * work.rows() + d0;
  const bool own_sums = work.args.norm_key.data == nullptr && e0 == 0;
  if constexpr (Prepared) {
    if (own_sums) add_up_columns<W>(column_sums, sums_to);
  }
  if constexpr (Size::groups == 1) {
    FX_UNROLL
    for (int n = 0; n < W / 8; ++n) FX_UNROLL
    for (int i = 0; i < 4; ++i) to[(r + i / 2 * 8) * work.columns() + 8 * n + c + i % 2] = sums[n][i];
    if (!Prepared && own_sums && c == 0) sums_to[r] = key_sums[0], sums_to[r + 8] = key_sums[2];
  } else {
    barrier();
    auto* shared = reinterpret_cast<float*>(shared_memory());  // [groups, W, W], then [groups, W]
    float* shared_sums = shared + Size::groups * W * W;
    FX_UNROLL
    for (int n = 0; n < W / 8; ++n) FX_UNROLL
    for (int i = 0; i < 4; ++i) shared[(group * W + r + i / 2 * 8) * W + 8 * n + c + i % 2] = sums[n][i];
    if (!Prepared && c == 0) shared_sums[group * W + r] = key_sums[0], shared_sums[group * W + r + 8] = key_sums[2];
    barrier();
    for (int at = thread_index(); at < W * W; at += Size::threads) {
      float sum = 0;
      FX_UNROLL
      for (int g = 0; g < Size::groups; ++g) sum += shared[g * W * W + at];
      to[at / W * work.columns() + at % W] = sum;
    }
    if (!Prepared && own_sums && thread_index() < W) {
      float sum = 0;
      FX_UNROLL
      for (int g = 0; g < Size::groups; ++g) sum += shared_sums[g * W + thread_index()];
      sums_to[thread_index()] = sum;
    }
  }
}

}  // namespace

}  // namespace fx
