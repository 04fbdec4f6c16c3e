// Attention that is linear in the number of tokens, in two passes over memory and a small step between.
//
// summarise: every block adds up φ(k)ᵀ v [W, W] and the normaliser's sum of keys over a chunk of tokens.
// combine:   the chunks' sums become one summary a head, in fp32 and split into three bfloat16 terms.
// apply:     queries times summary, divided by the normaliser on the way out.
//
// All products run on the tensor cores. Products of bfloat16 are exact there. fp32 operands are split into
// three terms, of whose products the six that matter are added. The tensor cores cut their sums where fp32
// arithmetic rounds, so only short sums are left to them. Where a split operand is infinite, a sum comes out
// NaN; such sums are computed again in plain fp32, so that only those stay NaN that are.

#include "../matrix_tile.h"
#include "relu_linear_attention.h"

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
  static constexpr int tokens = group_tokens * groups;                          // at a time
  FX_BOTH static constexpr int slots(int terms) { return terms == 1 ? 3 : 1; }  // for as many tiles, two on their way
};

struct Work {
  ReluLinearAttentionArgs args;
  int64_t d_blocks, e_blocks, chunks, chunk;
  bool split;                     // were operands of the first product split?
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

FX_DEVICE Window window(const Work& work, const Source& source, int64_t head, int64_t token, int64_t last,
                        int64_t column, int64_t width) {
  return {head_offset(source, head / work.args.heads, head % work.args.heads), token, last, column, width};
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
    for (int i = 0; i < 4; ++i) sums[i] += Terms == 1 ? first[i] : first[i] + rest[i];
  }
};

// ------------------------------------------------------------------------------------------- summarise

// Σ norm_k over a chunk, for the columns d0 on.
template <int W>
FX_RARELY void sum_columns(const Work& work, int64_t head, int64_t d0) {
  constexpr int threads = Summarise<W>::threads;
  const Source& source = work.args.norm_key;
  const int64_t first = block_x() * work.chunk, last = smaller(first + work.chunk, work.args.tokens);
  const Window from = window(work, source, head, first, last, d0, work.args.dim);
  auto* shared = reinterpret_cast<float*>(shared_memory());  // [parts, W]
  const int thread = thread_index();
  int parts;
  if (source.by_token) {  // `parts` threads share a column
    parts = threads / W;
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
  } else {  // a thread has eight columns of each `parts`-th token
    parts = threads / (W / 8);
    const int column = thread % (W / 8) * 8, part = thread / (W / 8);
    float sums[8] = {};
    for (int token = part; token < last - first; token += parts) {
      float eight[8];
      load_wide(eight, source, locate(source, from, token, column, source.by_token));
      FX_UNROLL
      for (int i = 0; i < 8; ++i) sums[i] += eight[i];
    }
    FX_UNROLL
    for (int i = 0; i < 8; ++i) shared[part * W + column + i] = sums[i];
  }
  barrier();
  if (thread < W) {
    float sum = 0;
    for (int part = 0; part < parts; ++part) sum += shared[part * W + thread];
    work.partial_sums[(head * work.chunks + block_x()) * work.rows() + d0 + thread] = sum;
  }
}

// Adds the products of one group's tokens of the tiles to `sums`, those of the keys alone to `key_sums`.
template <int W, int Terms, bool ByToken>
FX_DEVICE void add_tokens(float (&sums)[W / 8][4], float (&key_sums)[4], const uint16_t* keys, bool relu,
                          const uint16_t* values, int row, int token) {
  using Size = Summarise<W>;
  using Part = Tile<Size::tokens, W, Size::threads, Terms, ByToken>;
  using Pairs = Products<Terms, Terms>;
  constexpr int steps = Terms == 1 ? 2 : 1;  // of 16 tokens, added up by the tensor cores
  FX_UNROLL
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
    SplitSum<Terms> c;
    FX_UNROLL
    for (int t = Terms - 1; t >= 0; --t) FX_UNROLL
    for (int s = 0; s < steps; ++s) multiply_add(t == 0 ? c.first : c.rest, a[t][s], two_ones, two_ones);
    c.add_to(key_sums);
  }
}

template <int W, int Terms, bool ByToken>
constexpr int summarise_bytes() {
  using Size = Summarise<W>;
  const int tiles = Size::slots(Terms) * 2 * 2 * Tile<Size::tokens, W, Size::threads, Terms, ByToken>::elements;
  const int sums = Size::groups > 1 ? 4 * Size::groups * W * (W + 1) : 0;
  const int columns = 4 * 8 * Size::threads;  // of sum_columns
  return tiles > sums ? (tiles > columns ? tiles : columns) : (sums > columns ? sums : columns);
}

// Blocks: chunks; heads; blocks of the summary, and behind them, with norm keys, blocks of their sums.
template <int W, int Terms, bool ByToken>
FX_KERNEL(Summarise<W>::threads, (Terms == 1 ? 2 : 1))
summarise(FX_ARGUMENT(Work) work) {
  using Size = Summarise<W>;
  using Part = Tile<Size::tokens, W, Size::threads, Terms, ByToken>;
  const int64_t head = block_y();
  const int64_t part = block_z(), parts = work.d_blocks * work.e_blocks;
  if (part >= parts) return sum_columns<W>(work, head, (part - parts) * W);

  const Source &key = work.args.key, &value = work.args.value;
  const int64_t d0 = part / work.e_blocks * W, e0 = part % work.e_blocks * W;
  const int64_t first = block_x() * work.chunk, last = smaller(first + work.chunk, work.args.tokens);
  const int steps = static_cast<int>(divide_up(last - first, Size::tokens));
  auto* tiles = reinterpret_cast<uint16_t*>(shared_memory());  // of keys and values, for each slot
  constexpr int slots = Size::slots(Terms), slot_elements = 2 * Part::elements;
  const auto keys_of = [&](int step) { return tiles + step % slots * slot_elements; };
  const auto values_of = [&](int step) { return keys_of(step) + Part::elements; };
  const auto windows = [&](int step, auto&& fill) {
    const int64_t token = first + static_cast<int64_t>(step) * Size::tokens;
    fill(keys_of(step), key, window(work, key, head, token, last, d0, work.args.dim));
    fill(values_of(step), value, window(work, value, head, token, last, e0, work.args.dim_v));
  };
  const int row = warp_index() % Size::row_tiles * 16, group = warp_index() / Size::row_tiles;

  float sums[W / 8][4] = {}, key_sums[4] = {};
  const auto start = [&](int step) {
    if constexpr (Terms == 1) {
      if (step < steps) windows(step, [](auto&&... of) { Part::fill(of...); });
      commit_copies();
    }
  };
  start(0);
  start(1);
  for (int step = 0; step < steps; ++step) {
    if constexpr (Terms == 1) {
      wait_for_copies<1>();
      barrier();  // this step's tiles have come, and those of the last are not read any more
      start(step + 2);
    } else {
      barrier();
      windows(step, [](auto&&... of) { Part::fill_split(of...); });
      barrier();
    }
    add_tokens<W, Terms, ByToken>(sums, key_sums, keys_of(step), key.relu, values_of(step), row,
                                  Size::group_tokens * group);
  }

  // This lane has, of each 16x8 tile, the elements (r, c), (r, c + 1), (r + 8, c), (r + 8, c + 1).
  const int r = row + lane_index() / 4, c = 2 * (lane_index() % 4);
  const int64_t chunk = head * work.chunks + block_x();
  float* to = work.partial + chunk * work.rows() * work.columns() + d0 * work.columns() + e0;
  float* sums_to = work.partial_sums + chunk * work.rows() + d0;
  const bool own_sums = work.args.norm_key.data == nullptr && e0 == 0;
  if constexpr (Size::groups == 1) {
    FX_UNROLL
    for (int n = 0; n < W / 8; ++n) FX_UNROLL
    for (int i = 0; i < 4; ++i) to[(r + i / 2 * 8) * work.columns() + 8 * n + c + i % 2] = sums[n][i];
    if (own_sums && c == 0) sums_to[r] = key_sums[0], sums_to[r + 8] = key_sums[2];
  } else {
    barrier();
    auto* shared = reinterpret_cast<float*>(shared_memory());  // [groups, W, W], then [groups, W]
    float* shared_sums = shared + Size::groups * W * W;
    FX_UNROLL
    for (int n = 0; n < W / 8; ++n) FX_UNROLL
    for (int i = 0; i < 4; ++i) shared[(group * W + r + i / 2 * 8) * W + 8 * n + c + i % 2] = sums[n][i];
    if (c == 0) shared_sums[group * W + r] = key_sums[0], shared_sums[group * W + r + 8] = key_sums[2];
    barrier();
    for (int at = thread_index(); at < W * W; at += Size::threads) {
      float sum = 0;
      FX_UNROLL
      for (int g = 0; g < Size::groups; ++g) sum += shared[g * W * W + at];
      to[at / W * work.columns() + at % W] = sum;
    }
    if (own_sums && thread_index() < W) {
      float sum = 0;
      FX_UNROLL
      for (int g = 0; g < Size::groups; ++g) sum += shared_sums[g * W + thread_index()];
      sums_to[thread_index()] = sum;
    }
  }
}

// --------------------------------------------------------------------------------------------- combine

constexpr int combine_threads = 256;

// One element of a chunk's sums in plain fp32: φ(k)[d]·v[e], or φ(k)[d] alone where e < 0.
FX_RARELY float sum_again(const Work& work, int64_t head, int64_t chunk, int64_t d, int64_t e) {
  const Source &key = work.args.key, &value = work.args.value;
  const int64_t batch = head / work.args.heads, inner = head % work.args.heads;
  const int64_t k = head_offset(key, batch, inner) + d * key.strides[3];
  const int64_t v = head_offset(value, batch, inner) + e * value.strides[3];
  const int64_t first = chunk * work.chunk, last = smaller(first + work.chunk, work.args.tokens);
  float sum = 0;
  for (int64_t token = first; token < last; ++token)
    sum += load_one(key, k + token * key.strides[2]) * (e < 0 ? 1.0f : load_one(value, v + token * value.strides[2]));
  return sum;
}

// Blocks: elements of the summary and, behind them, of the sums of keys; heads.
FX_KERNEL(combine_threads, 1) combine(FX_ARGUMENT(Work) work) {
  const int64_t head = block_y(), matrix = work.rows() * work.columns();
  const int64_t index = static_cast<int64_t>(block_x()) * combine_threads + thread_index();
  if (index >= matrix + work.rows()) return;
  const bool of_keys = index >= matrix;
  const int64_t d = of_keys ? index - matrix : index / work.columns();
  const int64_t e = of_keys ? -1 : index % work.columns();
  const bool again = work.split && !(of_keys && work.args.norm_key.data != nullptr);
  float sum = 0;
  if (d < work.args.dim && e < work.args.dim_v) {  // elsewhere an infinite value would leave NaN
    const int64_t stride = of_keys ? work.rows() : matrix;
    const float* from = (of_keys ? work.partial_sums + d : work.partial + index) + head * work.chunks * stride;
    for (int64_t chunk = 0; chunk < work.chunks; ++chunk) {
      float part = from[chunk * stride];
      if (again && part != part) part = sum_again(work, head, chunk, d, e);
      sum += part;
    }
  }
  uint32_t terms[3];
  split(sum, terms);
  const int64_t w = work.width, block = d / w;
  if (of_keys) {
    work.key_sums[head * work.rows() + d] = sum;
    for (int t = 0; t < 3; ++t)
      work.sum_planes[((head * work.d_blocks + block) * 3 + t) * w + d % w] = static_cast<uint16_t>(terms[t]);
  } else {
    work.summary[head * matrix + index] = sum;
    uint16_t* to = work.planes + ((head * work.e_blocks + e / w) * work.d_blocks + block) * 3 * w * w;
    for (int t = 0; t < 3; ++t) to[(t * w + d % w) * w + e % w] = static_cast<uint16_t>(terms[t]);
  }
}

// ----------------------------------------------------------------------------------------------- apply

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
    const float inverse = 1.0f / (normaliser + args.eps);
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

// ---------------------------------------------------------------------------------------------- launch

template <int W, int Terms, bool ByToken>
void launch_all(const Work& work, Stream stream) {
  const auto& args = work.args;
  const int64_t norm_blocks = args.norm_key.data != nullptr ? work.d_blocks : 0;
  launch(summarise<W, Terms, ByToken>, {work.chunks, work.heads(), work.d_blocks * work.e_blocks + norm_blocks},
         Summarise<W>::threads, summarise_bytes<W, Terms, ByToken>(), stream, work);
  launch(combine, {divide_up(work.rows() * (work.columns() + 1), combine_threads), work.heads()}, combine_threads, 0,
         stream, work);
  using Size = Apply<W, Terms, ByToken>;
  Work last = work;
  last.apply_slots = Terms == 1 && Size::bytes(2) <= work.shared_bytes ? 2 : 1;
  last.apply_chunk = round_up(work.chunk, Size::tokens);
  launch(apply<W, Terms, ByToken>, {divide_up(args.tokens, last.apply_chunk), work.heads(), work.e_blocks},
         Size::threads, static_cast<size_t>(Size::bytes(last.apply_slots)), stream, last);
}

template <int W>
void launch_width(const Work& work, Stream stream) {
  const auto& args = work.args;
  const bool by_token = args.query.by_token && args.key.by_token && args.value.by_token;
  return work.split ? launch_all<W, 3, false>(work, stream)
         : by_token ? launch_all<W, 1, true>(work, stream)
                    : launch_all<W, 1, false>(work, stream);
}

// Sizes of the workspace's parts, in bytes and in order.
struct Sizes {
  int64_t partial, partial_sums, summary, key_sums, planes, sum_planes;
};

Sizes sizes(const ReluLinearAttentionArgs& args, const ReluLinearAttentionPlan& plan) {
  const int64_t heads = args.batch * args.heads, rows = plan.d_blocks * plan.width;
  const int64_t matrix = rows * plan.e_blocks * plan.width;
  return {4 * heads * plan.chunks * matrix,
          4 * heads * plan.chunks * rows,
          4 * heads * matrix,
          4 * heads * rows,
          2 * heads * 3 * matrix,
          2 * heads * 3 * rows};
}

}  // namespace

ReluLinearAttentionPlan plan_relu_linear_attention(const ReluLinearAttentionArgs& args,
                                                   const DeviceProperties& device) {
  ReluLinearAttentionPlan plan{};
  const int64_t widest = larger(args.dim, args.dim_v);
  plan.width = widest <= 32 ? 32 : widest <= 64 || widest > 112 ? 64 : 112;
  plan.d_blocks = divide_up(args.dim, plan.width), plan.e_blocks = divide_up(args.dim_v, plan.width);
  plan.shared_bytes = device.shared_bytes;
  plan.wide = args.query.wide || args.key.wide || args.value.wide || args.norm_query.wide;
  // One wave of blocks, of 256 tokens or more.
  const int64_t at_once = (plan.width == 32 ? 4 : 2) * device.multiprocessors;
  const int64_t wanted = larger(at_once / (args.batch * args.heads * plan.d_blocks * plan.e_blocks), 1);
  plan.chunk = round_up(larger(divide_up(args.tokens, wanted), 256), 64);
  plan.chunks = divide_up(args.tokens, plan.chunk);
  const Sizes s = sizes(args, plan);
  plan.workspace_bytes = s.partial + s.partial_sums + s.summary + s.key_sums + s.planes + s.sum_planes;
  return plan;
}

void run_relu_linear_attention(const ReluLinearAttentionArgs& args, const ReluLinearAttentionPlan& plan,
                               void* workspace, Stream stream) {
  const Sizes s = sizes(args, plan);
  auto* at = static_cast<char*>(workspace);
  const auto take = [&](int64_t bytes) {
    char* taken = at;
    at += bytes;
    return taken;
  };
  Work work{};
  work.args = args;
  work.d_blocks = plan.d_blocks, work.e_blocks = plan.e_blocks;
  work.chunks = plan.chunks, work.chunk = plan.chunk;
  work.split = plan.wide;
  work.width = plan.width, work.shared_bytes = plan.shared_bytes;
  work.partial = reinterpret_cast<float*>(take(s.partial));
  work.partial_sums = reinterpret_cast<float*>(take(s.partial_sums));
  work.summary = reinterpret_cast<float*>(take(s.summary));
  work.key_sums = reinterpret_cast<float*>(take(s.key_sums));
  work.planes = reinterpret_cast<uint16_t*>(take(s.planes));
  work.sum_planes = reinterpret_cast<uint16_t*>(take(s.sum_planes));
  switch (plan.width) {
    case 32:
      return launch_width<32>(work, stream);
    case 64:
      return launch_width<64>(work, stream);
    default:
      return launch_width<112>(work, stream);
  }
}

}  // namespace fx
