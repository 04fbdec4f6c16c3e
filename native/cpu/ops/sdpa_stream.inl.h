// Attention of few queries, as when decoding: bound by memory, so one pass over the keys and the values as
// they lie, without packing. Long sequences are cut into chunks, each with a softmax of its own, so that
// few heads still occupy all threads; the chunks' results are merged in the end.
#pragma once

#include "../engine/base.h"
#include "sdpa.h"
#include "sdpa_mask.inl.h"
#include "softmax_row.inl.h"
#include "workspace.inl.h"

namespace fx {

// T is the type of the products' operands, S that of the tensors.
template <class Isa, class T, class S>
class SdpaStream {
 public:
  static bool takes(const SdpaArgs& args) {
    return args.heads / args.groups * args.length <= most_rows && !packing_pays(args) && args.key_strides[3] == 1 &&
           args.value_strides[3] == 1;
  }

  explicit SdpaStream(const SdpaArgs& arguments) : args(arguments), softmax(arguments) {
    group = args.heads / args.groups;
    rows = group * args.length;
    keys = larger(visible_keys(args, args.length - 1).end, 1);
    chunks = divide_up(keys, chunk);
    part = round_up(args.dim_v, lanes) + lanes;
    far = keys > ahead;
  }

  void run(const Parallel& pool) const {
    const int64_t heads = args.batch * args.groups;
    float* parts = nullptr;  // [head][chunk][row]: sums, then maximum and sum of the softmax
    lay_out(Scratch::user0, [&](Workspace& space) { parts = space.take<float>(heads * chunks * rows * part); });
    const int64_t grain = larger(1, (64 << 10) / (smaller(chunk, keys) * (args.dim + args.dim_v)));
    parallel_for(pool, heads * chunks, grain, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) attend(task / chunks, task % chunks, parts + task * rows * part);
    });
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t r = 0; r < rows; ++r) merge(head, r, parts + (head * chunks * rows + r) * part);
  }

 private:
  using F32 = typename Isa::F32;
  static constexpr int lanes = Isa::lanes;
  static constexpr int64_t most_rows = 8;  // beyond, packing for the GEMM tile pays
  static constexpr int64_t chunk = 1024;
  static constexpr int64_t span = 32;
  static constexpr int64_t ahead = 24;  // rows; strided ones are beyond what hardware prefetches

  // Keys of few numbers are a vector each: products with them are mostly sums across it, unless they are packed.
  // (_sdpa_stream of fxrewrite/ops/implementations.py says the same.)
  static bool packing_pays(const SdpaArgs& args) {
    if (Isa::template k_step<bf16> == 1) return false;  // blocks are no faster than the framework's there
    return args.dtype == Dtype::bfloat16 ? args.dim <= 32 && args.length >= 4 : args.dim <= 16 && args.length >= 6;
  }

  const SdpaArgs& args;
  SoftmaxRow<Isa> softmax;
  int64_t group, rows, keys, chunks, part;
  bool far;  // keys are many enough to be fetched ahead

  void attend(int64_t key_head, int64_t index, float* result) const {
    const int64_t batch = key_head / args.groups, head = key_head % args.groups;
    const int64_t first = index * chunk, count = smaller(chunk, keys - first), stride = chunk + lanes;
    MaskReader<Isa> mask(args);
    T* query = nullptr;
    float* scores = nullptr;
    lay_out(Scratch::user1, [&](Workspace& space) {
      query = space.take<T>(rows * args.dim);
      scores = space.take<float>(rows * stride);
      mask.row = space.take<char>(MaskReader<Isa>::row_bytes(chunk));
    });

    copy_queries(query, batch, head);
    const int64_t *ks = args.key_strides, *vs = args.value_strides;
    const S* key = static_cast<const S*>(args.key) + batch * ks[0] + head * ks[1] + first * ks[2];
    const S* value = static_cast<const S*>(args.value) + batch * vs[0] + head * vs[1] + first * vs[2];
    score(scores, stride, query, key, ks[2], count);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t at = r % args.length;
      const KeyRange seen = visible_keys(args, at);
      float max = -__builtin_inff(), sums[lanes] = {};
      softmax.template run<float>(
          mask.form, scores + r * stride, mask(batch, head * group + r / args.length, at, first, count),
          larger(seen.begin - first, 0), smaller(seen.end - first, count), round_up(count, lanes), nullptr, max, sums);
      float* tail = result + (r + 1) * part - lanes;
      tail[0] = max, tail[1] = Isa::sum(Isa::load(sums));
    }
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) weigh<4, 4>(result + r * part, scores + r * stride, stride, value, vs[2], count);
    if (rows - r >= 2) weigh<2, 8>(result + r * part, scores + r * stride, stride, value, vs[2], count), r += 2;
    if (rows - r >= 1) weigh<1, 8>(result + r * part, scores + r * stride, stride, value, vs[2], count);
  }

  void copy_queries(T* to, int64_t batch, int64_t key_head) const {
    const int64_t* strides = args.query_strides;
    for (int64_t r = 0; r < rows; ++r, to += args.dim) {
      const S* from = static_cast<const S*>(args.query) + batch * strides[0] +
                      (key_head * group + r / args.length) * strides[1] + r % args.length * strides[2];
      for (int64_t d = 0; d < args.dim; ++d) to[d] = as<T>(from[d * strides[3]]);
    }
  }

  // scores[r][j] = query r · key j
  void score(float* scores, int64_t stride, const T* query, const S* key, int64_t key_stride, int64_t count) const {
    int64_t j = 0;
    if (rows > 1)  // one waits for memory anyway, and that in smaller pieces
      for (; j + lanes <= count; j += lanes) dots<lanes>(scores + j, stride, query, key + j * key_stride, key_stride);
    for (; j + 4 <= count; j += 4) dots<4>(scores + j, stride, query, key + j * key_stride, key_stride);
    for (; j < count; ++j) dots<1>(scores + j, stride, query, key + j * key_stride, key_stride);
  }

  // A few keys at a time, in the order of memory; the sums of a vector's worth of keys are added up together.
  template <int Keys>
  void dots(float* scores, int64_t stride, const T* query, const S* key, int64_t key_stride) const {
    constexpr int some = Keys < 4 ? Keys : 4;
    for (int64_t r = 0; r < rows; ++r, query += args.dim, scores += stride) {
      F32 sums[Keys];
      FX_UNROLL
      for (int i = 0; i < Keys; i += some) {
        if (r == 0 && far) {
          FX_UNROLL
          for (int j = i; j < i + some; ++j) prefetch(key + (j + ahead) * key_stride, args.dim);
        }
        products<some>(sums + i, query, key + i * key_stride, key_stride);
      }
      if constexpr (Keys == lanes) {
        Isa::store(scores, Isa::sum_each(sums));
      } else {
        FX_UNROLL
        for (int i = 0; i < Keys; ++i) scores[i] = Isa::sum(sums[i]);
      }
    }
  }

  template <int Keys>
  FX_MEMBER void products(F32* sums, const T* query, const S* key, int64_t key_stride) const {
    constexpr int size = Isa::template chunk_size<T>;
    static_assert(size == Isa::template chunk_size<S>);
    typename Isa::template Chunk<T> q[1], k[1];
    F32 parts[Keys];
    FX_UNROLL
    for (int i = 0; i < Keys; ++i) parts[i] = Isa::zero();
    int64_t d = 0;
    for (; d + size <= args.dim; d += size) {
      Isa::chunks(query + d, q);
      FX_UNROLL
      for (int i = 0; i < Keys; ++i) {
        Isa::chunks(key + i * key_stride + d, k);
        parts[i] = Isa::dot(q[0], k[0], parts[i]);
      }
    }
    if (d < args.dim) {
      const int rest = static_cast<int>(args.dim - d);
      Isa::chunks(query + d, rest, q);
      FX_UNROLL
      for (int i = 0; i < Keys; ++i) {
        Isa::chunks(key + i * key_stride + d, rest, k);
        parts[i] = Isa::dot(q[0], k[0], parts[i]);
      }
    }
    FX_UNROLL
    for (int i = 0; i < Keys; ++i) sums[i] = parts[i];
  }

  // Into L2 only: L1's few miss buffers would all wait for memory, and reads of what has come with them.
  static FX_MEMBER void prefetch(const S* row, int64_t width) {
    constexpr int64_t line = 64 / sizeof(S);
    for (int64_t d = 0; d < width; d += line) __builtin_prefetch(row + d, 0, 2);
  }

  // result[r][d] = Σ_j p[r][j] · value[j][d]: sums of Rows rows and up to Vectors vectors of columns in registers.
  template <int Rows, int Vectors>
  void weigh(float* result, const float* p, int64_t p_stride, const S* value, int64_t stride, int64_t count) const {
    int64_t d = 0;
    for (; d + Vectors * lanes <= args.dim_v; d += Vectors * lanes)
      weigh_columns<Rows, Vectors, true>(result + d, p, p_stride, value + d, stride, count, Vectors * lanes);
    if (d < args.dim_v) weigh_last<Rows, Vectors>(result + d, p, p_stride, value + d, stride, count, args.dim_v - d);
  }

  template <int Rows, int Vectors>
  FX_MEMBER void weigh_last(float* result, const float* p, int64_t p_stride, const S* value, int64_t stride,
                            int64_t count, int64_t width) const {
    if constexpr (Vectors > 0) {
      if (width == Vectors * lanes)
        weigh_columns<Rows, Vectors, true>(result, p, p_stride, value, stride, count, width);
      else if (width > (Vectors - 1) * lanes)
        weigh_columns<Rows, Vectors, false>(result, p, p_stride, value, stride, count, width);
      else
        weigh_last<Rows, Vectors - 1>(result, p, p_stride, value, stride, count, width);
    }
  }

  // Vectors of them, the last one not whole where they are not Full.
  template <int Rows, int Vectors, bool Full>
  void weigh_columns(float* result, const float* p, int64_t p_stride, const S* value, int64_t stride, int64_t count,
                     int64_t width) const {
    const int last = static_cast<int>(width - (Vectors - 1) * lanes);
    // sums of spans, added up in memory: one long sum would lose more bits than eager's blocked one
    for (int64_t first = 0; first == 0 || first < count; first += span) {
      F32 sums[Rows][Vectors];
      FX_UNROLL
      for (int r = 0; r < Rows; ++r) FX_UNROLL
      for (int v = 0; v < Vectors; ++v) sums[r][v] = Isa::zero();
      for (int64_t j = first, end = smaller(first + span, count); j < end; ++j, value += stride) {
        if (far) prefetch(value + ahead * stride, width);
        FX_UNROLL
        for (int v = 0; v < Vectors; ++v) {
          const bool whole = Full || v + 1 < Vectors;
          const F32 x = whole ? Isa::load(value + v * lanes) : Isa::load(value + v * lanes, last);
          FX_UNROLL
          for (int r = 0; r < Rows; ++r) sums[r][v] = Isa::fma(x, Isa::splat(p[r * p_stride + j]), sums[r][v]);
        }
      }
      FX_UNROLL
      for (int r = 0; r < Rows; ++r) FX_UNROLL
      for (int v = 0; v < Vectors; ++v) {
        float* at = result + r * part + v * lanes;
        Isa::store(at, first == 0 ? sums[r][v] : Isa::load(at) + sums[r][v]);
      }
    }
  }

  // The chunks of one row lie `rows` parts apart.
  void merge(int64_t key_head, int64_t r, const float* parts) const {
    const int64_t batch = key_head / args.groups, head = key_head % args.groups * group + r / args.length;
    const int64_t* strides = args.out_strides;
    S* out = static_cast<S*>(args.out) + batch * strides[0] + head * strides[1] + r % args.length * strides[2];
    float max = -__builtin_inff();
    for (int64_t c = 0; c < chunks; ++c) {
      const float one = parts[(c * rows + 1) * part - lanes];
      max = max > one ? max : one;
    }
    const float base = max == -__builtin_inff() ? 0.0f : max;
    float total = 0;
    for (int64_t c = 0; c < chunks; ++c)
      total += factor(parts + c * rows * part, base) * parts[(c * rows + 1) * part - lanes + 1];
    const float divisor = softmax.divisor(max, total, sink_of(args, head));
    for (int64_t d = 0; d < args.dim_v; d += lanes) {
      F32 sums = Isa::zero();
      for (int64_t c = 0; c < chunks; ++c)
        sums += Isa::load(parts + c * rows * part + d) * Isa::splat(factor(parts + c * rows * part, base));
      Isa::store(out + d, sums / Isa::splat(divisor), static_cast<int>(smaller(lanes, args.dim_v - d)));
    }
  }

  float factor(const float* one, float base) const {
    return Isa::exp(Isa::splat((one[part - lanes] - base) * softmax.unit))[0];
  }
};

}  // namespace fx
