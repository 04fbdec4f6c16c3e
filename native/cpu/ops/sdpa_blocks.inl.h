// Attention of many queries: FlashAttention-2 (Dao, 2023) on the GEMM engine.
//
// A thread takes query blocks in order. Keys and values are packed once for each key head, and used for
// every query block of every query head that shares them. Where a head's keys are too many to keep packed,
// a few query blocks at a time go over one span of keys after another.
#pragma once

#include "../caches.h"
#include "../engine/gemm.inl.h"
#include "sdpa.h"
#include "sdpa_mask.inl.h"
#include "softmax_row.inl.h"
#include "workspace.inl.h"

namespace fx {

// Scores as they are, or scaled and masked where `mask` is not null, and the maximum of each row so far, in `lanes`
// parts.
template <class Isa>
struct StoreScores {
  using F32 = typename Isa::F32;

  float* scores;
  int64_t stride;
  float* best;  // [rows][lanes]
  bool adds;    // to what was stored before
  bool first;   // the first columns of the rows
  const SoftmaxRow<Isa>& softmax;
  MaskForm form;
  const char* mask;     // of the first row
  int64_t mask_stride;  // bytes between rows

  template <int Vectors>
  FX_MEMBER void whole_row(int64_t row, F32 (&sums)[Vectors], int64_t columns) const {
    constexpr int lanes = Isa::lanes;
    float* to = scores + row * stride;
    if (adds) {
      FX_UNROLL
      for (int v = 0; v < Vectors; ++v) sums[v] += Isa::load(to + v * lanes);
    }
    if (mask != nullptr) apply(mask + row * mask_stride, sums, columns);
    auto most = first ? Isa::splat(-__builtin_inff()) : Isa::load(best + row * lanes);
    FX_UNROLL
    for (int v = 0; v < Vectors; ++v) {
      const int count = static_cast<int>(smaller(columns - v * lanes, lanes));
      if (count <= 0) break;
      if (count < lanes) sums[v] = Isa::first(count, sums[v], Isa::splat(-__builtin_inff()));  // beyond is no score
      Isa::store(to + v * lanes, sums[v]);
      most = Isa::max(most, sums[v]);
    }
    Isa::store(best + row * lanes, most);
  }

 private:
  template <int Vectors>
  FX_MEMBER void apply(const void* row, F32 (&sums)[Vectors], int64_t columns) const {
    switch (form) {
      case MaskForm::lower:
        return apply<MaskForm::lower>(row, sums, columns);
      case MaskForm::replace:
        return apply<MaskForm::replace>(row, sums, columns);
      case MaskForm::add_float:
        return apply<MaskForm::add_float>(row, sums, columns);
      case MaskForm::add_bf16:
        return apply<MaskForm::add_bf16>(row, sums, columns);
      default:
        return apply<MaskForm::add_f16>(row, sums, columns);
    }
  }
  template <MaskForm form, int Vectors>
  FX_MEMBER void apply(const void* row, F32 (&sums)[Vectors], int64_t columns) const {
    constexpr int item = form == MaskForm::add_float                               ? 4
                         : form == MaskForm::add_bf16 || form == MaskForm::add_f16 ? 2
                                                                                   : 1;
    FX_UNROLL
    for (int byte = 0; byte < Isa::panel * item; byte += 64)  // of the next panel: rows are too short to be foreseen
      __builtin_prefetch(static_cast<const char*>(row) + Isa::panel * item + byte);
    FX_UNROLL
    for (int v = 0; v < Vectors; ++v) {
      const int64_t at = v * Isa::lanes, left = columns - at;
      if (left >= Isa::lanes)
        sums[v] = softmax.template masked<form, false>(sums[v], row, at, Isa::lanes);
      else if (left > 0)
        sums[v] = softmax.template masked<form, false>(sums[v], row, at, static_cast<int>(left));
    }
  }
};

// T is the type of the products' operands, S that of the tensors.
template <class Isa, class T, class S>
class SdpaBlocks {
 public:
  explicit SdpaBlocks(const SdpaArgs& arguments) : args(arguments), softmax(arguments) {
    group = args.heads / args.groups;
    blocks = divide_up(args.length, most_rows);
    rows = smaller(round_up(divide_up(args.length, blocks), unit), most_rows);
    blocks = divide_up(args.length, rows);
    keys = larger(visible_keys(args, args.length - 1).end, 1);
    dim_block = !wide ? int64_t{1} << 40 : keys <= few_keys ? few_summed : most_summed;
    // The scores of a block go little beyond L1, blocks are of like size; packed keys come from L2 or a share of L3.
    const int64_t most_keys =
        round_up(3 * caches().l1 / 2 / static_cast<int64_t>(sizeof(float) * most_rows), most_summed);
    key_block = round_up(divide_up(keys, divide_up(keys, most_keys)), most_summed);
    // Tiles, which leave their sums in memory after each block of values, take long ones.
    value_block = !Isa::template tiles<T> && (wide || args.window > 0) ? most_summed : key_block;
    score_stride = key_block + column_unit;  // not a power of two: rows spread over L1's sets
    const int64_t key_bytes = static_cast<int64_t>(sizeof(T)) * (args.dim + args.dim_v);
    const int64_t packed_bytes = 4 * caches().l2;
    span = smaller(larger(packed_bytes / key_bytes / key_block, 1) * key_block, round_up(keys, key_block));
    held = span < keys ? held_blocks : 1;
    in_place = __is_same(T, S) && args.query_strides[3] == 1;
  }

  void run(const Parallel& pool) const {
    parallel_for(pool, args.batch * args.heads * blocks, 1, [this](int64_t begin, int64_t end) { work(begin, end); });
  }

 private:
  static constexpr int lanes = Isa::lanes;
  static constexpr bool wide = sizeof(T) == sizeof(float);
  static constexpr int64_t unit = gemm::row_unit<Isa, T>;
  // A query block. Few rows, so that under a causal mask little is computed in vain; enough to use a panel for
  // while it is in L1.
  static constexpr int64_t most_rows = round_up(24, unit);
  static constexpr int64_t held_blocks = 32;  // query blocks that share a span, where spans are many
  // Sums of more products than this in one register would lose to blocked ones in fp32.
  static constexpr int64_t most_summed = 128;
  // For few keys a framework's product sums in more chains than one, and its scores are as much nearer.
  static constexpr int64_t few_keys = 64, few_summed = 32;

  const SdpaArgs& args;
  SoftmaxRow<Isa> softmax;
  int64_t group, blocks, rows, keys, held;
  int64_t dim_block;    // dimensions whose products are summed in one register
  int64_t key_block;    // keys between two looks at the running maximum
  int64_t value_block;  // keys whose values are packed together
  int64_t span;         // keys that are packed at once
  int64_t score_stride;
  bool in_place;  // queries are read where they are

  // One block of queries on its way over the keys.
  struct Block {
    T* copy;         // [rows][dim], where the queries are not read in place
    const T* query;  // row r at r * query_stride
    int64_t query_stride;
    float* sums;   // [rows][sum_stride]
    float* max;    // [rows]: the softmax's running maximum ...
    float* total;  // [rows][lanes]: ... and sum, in parts
    int64_t batch, head, first, count;
    int64_t begin, end;  // the keys that any of its rows sees, from a block of values on
  };

  struct Thread {
    Block block[held_blocks];
    void* packed_keys;
    void* packed_values;
    float* scores;
    float* best;                   // [rows][lanes]: the greatest scores of a key block, in parts
    T* low;                        // [rows][score_stride]: what rounding the probabilities to T dropped
    int64_t head = -1, span = -1;  // what is packed
  };

  int64_t sum_stride() const { return round_up(args.dim_v, column_unit); }

  void work(int64_t begin, int64_t end) const {
    [[maybe_unused]] const typename Isa::Session session;
    Thread thread;
    MaskReader<Isa> mask(args);
    lay_out(Scratch::user0, [&](Workspace& space) {
      thread.packed_keys = space.take<char>(static_cast<int64_t>(gemm::packed_bytes<Isa, T>(args.dim, span)));
      thread.packed_values = space.take<char>(
          span / value_block * static_cast<int64_t>(gemm::packed_bytes<Isa, T>(value_block, args.dim_v)));
      thread.scores = space.take<float>(rows * score_stride);
      thread.best = space.take<float>(rows * lanes);
      thread.low = space.take<T>(args.precise ? rows * score_stride : 0);
      mask.row = space.take<char>(MaskReader<Isa>::row_bytes(key_block));
      for (int64_t i = 0; i < held; ++i) {
        thread.block[i].copy = space.take<T>(in_place ? 0 : rows * args.dim);
        thread.block[i].sums = space.take<float>(rows * sum_stride());
        thread.block[i].max = space.take<float>(rows);
        thread.block[i].total = space.take<float>(rows * lanes);
      }
    });

    const int64_t shared = group * blocks;  // query blocks that read the same keys
    for (int64_t task = begin; task < end;) {
      const int64_t key_head = task / shared;
      const int64_t stop = smaller(smaller(end, (key_head + 1) * shared), task + held);
      for (int64_t t = task; t < stop; ++t) start(thread.block[t - task], key_head, t - key_head * shared);
      for (int64_t first = 0; first < keys; first += span) {
        pack(thread, key_head, first);
        for (int64_t t = task; t < stop; ++t) attend(thread, thread.block[t - task], mask, first);
      }
      for (int64_t t = task; t < stop; ++t) finish(thread.block[t - task]);
      task = stop;
    }
  }

  void start(Block& block, int64_t key_head, int64_t index) const {
    // Blocks of a head from both ends inwards: under a causal mask any stretch of them is of like work.
    const int64_t order = index % blocks, at = order % 2 == 0 ? order / 2 : blocks - 1 - order / 2;
    block.batch = key_head / args.groups;
    block.head = key_head % args.groups * group + index / blocks;
    block.first = at * rows;
    block.count = smaller(rows, args.length - block.first);
    // At least one key, so that the sums are set; `attend` gives it no weight where no row sees it.
    block.end = larger(visible_keys(args, block.first + block.count - 1).end, 1);
    block.begin = smaller(visible_keys(args, block.first).begin, block.end - 1) / value_block * value_block;
    const int64_t* strides = args.query_strides;
    const S* from = static_cast<const S*>(args.query) + block.batch * strides[0] + block.head * strides[1] +
                    block.first * strides[2];
    if constexpr (__is_same(T, S)) block.query = from, block.query_stride = strides[2];
    if (!in_place) {
      block.query = block.copy, block.query_stride = args.dim;
      for (int64_t r = 0; r < block.count; ++r)
        for (int64_t d = 0; d < args.dim; ++d)
          block.copy[r * args.dim + d] = as<T>(from[r * strides[2] + d * strides[3]]);
    }
    for (int64_t r = 0; r < block.count; ++r) {
      block.max[r] = -__builtin_inff();
      Isa::store(block.total + r * lanes, Isa::zero());
    }
  }

  void pack(Thread& thread, int64_t key_head, int64_t first) const {
    if (thread.head == key_head && thread.span == first) return;
    thread.head = key_head, thread.span = first;
    const int64_t batch = key_head / args.groups, head = key_head % args.groups, count = smaller(span, keys - first);
    const int64_t *ks = args.key_strides, *vs = args.value_strides;
    const S* key = static_cast<const S*>(args.key) + batch * ks[0] + head * ks[1] + first * ks[2];
    const S* value = static_cast<const S*>(args.value) + batch * vs[0] + head * vs[1] + first * vs[2];
    for (int64_t d = 0; d < args.dim; d += dim_block)
      gemm::pack<Isa, T>(keys_at(thread, d, 0), key + d * ks[3], ks[2], ks[3], smaller(dim_block, args.dim - d), count);
    for (int64_t j = 0; j < count; j += value_block)
      gemm::pack<Isa, T>(values_at(thread, j), value + j * vs[2], vs[3], vs[2], smaller(value_block, count - j),
                         args.dim_v);
  }

  // Keys are packed by blocks of dimensions; within one, by panels.
  char* keys_at(const Thread& thread, int64_t d, int64_t key) const {
    const size_t before = d == 0 ? 0 : gemm::packed_bytes<Isa, T>(d, span);
    return static_cast<char*>(thread.packed_keys) + before +
           gemm::packed_bytes<Isa, T>(smaller(dim_block, args.dim - d), key);
  }

  char* values_at(const Thread& thread, int64_t key) const {
    const auto bytes = static_cast<int64_t>(gemm::packed_bytes<Isa, T>(value_block, args.dim_v));
    return static_cast<char*>(thread.packed_values) + key / value_block * bytes;
  }

  // Takes one block of queries over the packed keys, which start at key `first`.
  void attend(const Thread& thread, const Block& block, MaskReader<Isa>& mask, int64_t first) const {
    const int64_t packed_end = smaller(first + span, keys);
    const int64_t last = smaller(packed_end, block.end);
    for (int64_t key = larger(first, block.begin); key < last; key += key_block) {
      const int64_t count = smaller(key_block, last - key);
      const int64_t whole = smaller(round_up(count, Isa::panel), packed_end - key);  // panels as they were packed
      score(thread, block, mask, key, key - first, whole);
      if (args.precise)
        weigh<true>(thread, block, mask, key, count, whole);
      else
        weigh<false>(thread, block, mask, key, count, whole);
      for (int64_t j = 0; j < count; j += value_block) {
        const T* weights = reinterpret_cast<const T*>(thread.scores) + j;
        const int64_t stride = score_stride * static_cast<int64_t>(sizeof(float) / sizeof(T));
        const char* values = values_at(thread, key - first + j);
        const int64_t some = smaller(value_block, count - j), packed_count = smaller(value_block, packed_end - key - j);
        add_values(block, weights, stride, values, some, packed_count, key + j > block.begin);
        if (args.precise) add_values(block, thread.low + j, score_stride, values, some, packed_count, true);
      }
    }
  }

  // Are scores scaled and masked when they are stored?
  bool masks_early(const MaskReader<Isa>& mask) const { return mask.in_place && softmax.cap == 0; }

  // Scores of `count` keys from `key` on, which were packed as number `packed`.
  void score(const Thread& thread, const Block& block, const MaskReader<Isa>& mask, int64_t key, int64_t packed,
             int64_t count) const {
    const char* row = masks_early(mask) ? mask.at(block.batch, block.head, block.first, key) : nullptr;
    for (int64_t d = 0; d < args.dim; d += dim_block) {
      const int64_t depth = smaller(dim_block, args.dim - d);
      auto* panel = reinterpret_cast<const typename Isa::template Panel<T>*>(keys_at(thread, d, packed));
      const bool masks = row != nullptr && d + depth == args.dim;
      for (int64_t j = 0; j < count; j += Isa::panel) {
        const StoreScores<Isa> sink{thread.scores + j,
                                    score_stride,
                                    thread.best,
                                    d > 0,
                                    j == 0,
                                    softmax,
                                    mask.form,
                                    masks ? row + j * mask.item : nullptr,
                                    args.mask_strides[2] * mask.item};
        gemm::multiply_panel<Isa>(block.query + d, block.query_stride, panel, block.count,
                                  smaller(Isa::panel, count - j), depth, sink);
        panel += panel_depth<Isa, T>(depth) * Isa::panel;
      }
    }
  }

  // The scores of a key block, of which `known` were computed, become probabilities.
  template <bool Split>
  void weigh(const Thread& thread, const Block& block, MaskReader<Isa>& mask, int64_t key, int64_t count,
             int64_t known) const {
    const bool early = masks_early(mask);
    for (int64_t r = 0; r < block.count; ++r) {
      const int64_t query = block.first + r;
      const KeyRange seen = visible_keys(args, query);
      const int64_t begin = larger(seen.begin - key, 0), end = smaller(seen.end - key, count);
      const float* best = begin == 0 && end == known ? thread.best + r * lanes : nullptr;
      const void* row = early ? nullptr : mask(block.batch, block.head, query, key, count);
      const float factor = softmax.template run<T, Split>(
          early ? MaskForm::applied : mask.form, thread.scores + r * score_stride, row, begin, end,
          round_up(count, lanes), best, block.max[r], block.total + r * lanes, thread.low + r * score_stride);
      if (key > block.begin && factor != 1.0f) shrink(block.sums + r * sum_stride(), factor);
    }
  }

  // sums (+)= weights · values of `count` keys, the first of `packed_count` that were packed together.
  void add_values(const Block& block, const T* weights, int64_t stride, const char* packed, int64_t count,
                  int64_t packed_count, bool accumulate) const {
    auto* panel = reinterpret_cast<const typename Isa::template Panel<T>*>(packed);
    for (int64_t d = 0; d < args.dim_v; d += Isa::panel) {
      const int64_t columns = smaller(Isa::panel, args.dim_v - d);
      float* sums = block.sums + d;
      if (accumulate)
        gemm::multiply_panel<Isa>(weights, stride, panel, block.count, columns, count, AddTo<Isa>{sums, sum_stride()});
      else
        gemm::multiply_panel<Isa>(weights, stride, panel, block.count, columns, count,
                                  StoreTo<Isa>{sums, sum_stride()});
      panel += panel_depth<Isa, T>(packed_count) * panel_width<Isa>(args.dim_v, d);
    }
  }

  void shrink(float* sums, float factor) const {
    for (int64_t d = 0; d < sum_stride(); d += Isa::lanes)
      Isa::store(sums + d, Isa::load(sums + d) * Isa::splat(factor));
  }

  void finish(const Block& block) const {
    const int64_t* strides = args.out_strides;
    S* out = static_cast<S*>(args.out) + block.batch * strides[0] + block.head * strides[1] + block.first * strides[2];
    const float* sink = sink_of(args, block.head);
    for (int64_t r = 0; r < block.count; ++r, out += strides[2]) {
      const float total = Isa::sum(Isa::load(block.total + r * lanes));
      const float divisor = softmax.divisor(block.max[r], total, sink);
      const float* sums = block.sums + r * sum_stride();
      int64_t d = 0;
      for (; d + lanes <= args.dim_v; d += lanes) Isa::store(out + d, divided(Isa::load(sums + d), divisor));
      if (d < args.dim_v) Isa::store(out + d, divided(Isa::load(sums + d), divisor), static_cast<int>(args.dim_v - d));
    }
  }

  static FX_MEMBER typename Isa::F32 divided(typename Isa::F32 sums, float divisor) {
    if constexpr (sizeof(S) == sizeof(float))
      return sums / Isa::splat(divisor);
    else
      return sums * Isa::splat(1.0f / divisor);
  }
};

}  // namespace fx
