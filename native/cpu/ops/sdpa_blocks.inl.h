// Attention of many queries: FlashAttention-2 (Dao, 2023) on the GEMM engine.
//
// A thread takes query blocks in order. Keys and values are packed once for each key head, and used for
// every query block of every query head that shares them. Where a head's keys are too many to keep packed,
// a few query blocks at a time go over one span of keys after another.
#pragma once

#include "../engine/gemm.inl.h"
#include "sdpa.h"
#include "sdpa_mask.inl.h"
#include "softmax_row.inl.h"
#include "workspace.inl.h"

namespace fx {

template <class Isa, class T>
class SdpaBlocks {
 public:
  explicit SdpaBlocks(const SdpaArgs& arguments) : args(arguments), softmax(arguments) {
    group = args.heads / args.groups;
    constexpr int64_t unit = gemm::row_unit<Isa, T>;
    const int64_t most = round_up(args.causal ? most_causal_rows : most_rows, unit);
    blocks = divide_up(args.length, most);
    rows = smaller(round_up(divide_up(args.length, blocks), unit), most);
    blocks = divide_up(args.length, rows);
    keys = larger(visible_keys(args, args.length - 1).end, 1);
    const int64_t key_bytes = static_cast<int64_t>(sizeof(T)) * (args.dim + args.dim_v);
    span = smaller(larger(packed_bytes / key_bytes / key_block, 1) * key_block, round_up(keys, key_block));
    held = span < keys ? held_blocks : 1;
  }

  void run(const Parallel& pool) const {
    parallel_for(pool, args.batch * args.heads * blocks, 1, [this](int64_t begin, int64_t end) { work(begin, end); });
  }

 private:
  static constexpr int64_t most_rows = 96;         // a query block: its scores of a key block stay in L2
  static constexpr int64_t most_causal_rows = 60;  // half of a block's last scores are above the diagonal
  static constexpr int64_t key_block = 512;        // keys between two looks at the running maximum
  // A panel of values stays in L1; tiles, which leave their sums in memory after each, take longer ones.
  static constexpr int64_t value_block = Isa::template tiles<T> ? key_block : 128;
  // Sums of more products than this in one register would lose to blocked ones in fp32.
  static constexpr int64_t dim_block = sizeof(T) == sizeof(float) ? 128 : int64_t{1} << 40;
  static constexpr int64_t packed_bytes = 4 << 20;
  static constexpr int64_t held_blocks = 8;                // query blocks that share a span, where spans are many
  static constexpr int64_t score_stride = key_block + 16;  // not a power of two: rows spread over L1's sets

  const SdpaArgs& args;
  SoftmaxRow<Isa> softmax;
  int64_t group, blocks, rows, keys, span, held;

  // One block of queries on its way over the keys.
  struct Block {
    T* query;             // [rows][dim]
    float* sums;          // [rows][sum_stride]
    SoftmaxState* state;  // [rows]
    int64_t batch, head, first, count;
    int64_t begin, end;  // the keys that any of its rows sees, from a block of values on
  };

  struct Thread {
    Block block[held_blocks];
    void* packed_keys;
    void* packed_values;
    float* scores;
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
      thread.low = space.take<T>(args.precise ? rows * score_stride : 0);
      mask.row = space.take<char>(MaskReader<Isa>::row_bytes(key_block));
      for (int64_t i = 0; i < held; ++i) {
        thread.block[i].query = space.take<T>(rows * args.dim);
        thread.block[i].sums = space.take<float>(rows * sum_stride());
        thread.block[i].state = space.take<SoftmaxState>(rows);
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
    const T* from = static_cast<const T*>(args.query) + block.batch * strides[0] + block.head * strides[1];
    for (int64_t r = 0; r < block.count; ++r) {
      const T* row = from + (block.first + r) * strides[2];
      for (int64_t d = 0; d < args.dim; ++d) block.query[r * args.dim + d] = row[d * strides[3]];
      block.state[r] = {-__builtin_inff(), 0.0f};
    }
  }

  void pack(Thread& thread, int64_t key_head, int64_t first) const {
    if (thread.head == key_head && thread.span == first) return;
    thread.head = key_head, thread.span = first;
    const int64_t batch = key_head / args.groups, head = key_head % args.groups, count = smaller(span, keys - first);
    const int64_t *ks = args.key_strides, *vs = args.value_strides;
    const T* key = static_cast<const T*>(args.key) + batch * ks[0] + head * ks[1] + first * ks[2];
    const T* value = static_cast<const T*>(args.value) + batch * vs[0] + head * vs[1] + first * vs[2];
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
      for (int64_t d = 0; d < args.dim; d += dim_block)
        gemm::multiply<Isa, T>(thread.scores, score_stride, block.query + d, args.dim, keys_at(thread, d, key - first),
                               block.count, whole, smaller(dim_block, args.dim - d), d > 0);
      if (args.precise)
        weigh<true>(thread, block, mask, key, count);
      else
        weigh<false>(thread, block, mask, key, count);
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

  // The scores of a key block become probabilities.
  template <bool Split>
  void weigh(const Thread& thread, const Block& block, MaskReader<Isa>& mask, int64_t key, int64_t count) const {
    for (int64_t r = 0; r < block.count; ++r) {
      const int64_t query = block.first + r;
      const KeyRange seen = visible_keys(args, query);
      const void* mask_row = mask(block.batch, block.head, query, key, count);
      const float factor = softmax.template run<T, Split>(
          mask.form, thread.scores + r * score_stride, mask_row, larger(seen.begin - key, 0),
          smaller(seen.end - key, count), round_up(count, Isa::lanes), block.state[r], thread.low + r * score_stride);
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
    T* out = static_cast<T*>(args.out) + block.batch * strides[0] + block.head * strides[1] + block.first * strides[2];
    for (int64_t r = 0; r < block.count; ++r, out += strides[2]) {
      const auto divisor = Isa::splat(softmax.divisor(block.state[r], sink_of(args, block.head)));
      const float* sums = block.sums + r * sum_stride();
      int64_t d = 0;
      for (; d + Isa::lanes <= args.dim_v; d += Isa::lanes) Isa::store(out + d, Isa::load(sums + d) / divisor);
      if (d < args.dim_v) Isa::store(out + d, Isa::load(sums + d) / divisor, static_cast<int>(args.dim_v - d));
    }
  }
};

}  // namespace fx
