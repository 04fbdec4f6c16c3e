// Second kernel of relu_linear_attention: the chunks' sums become one summary a head.
#pragma once

#include "relu_linear_turn.inl.h"

namespace fx {

namespace {

constexpr int combine_threads = 256;

// One element of a chunk's sums in plain fp32: φ(k)[d]·v[e], or φ(k)[d] alone where e < 0.
FX_CALLED float sum_again(const Work& work, int64_t head, int64_t chunk, int64_t d, int64_t e) {
  const Source &key = work.args.key, &value = work.args.value;
  const int64_t first = chunk * work.chunk, last = smaller(first + work.chunk, work.args.tokens);
  float sum = 0;
  for (int64_t token = first; token < last; ++token)
    sum += feature(work, key, head, token, d) * (e < 0 ? 1.0f : feature(work, value, head, token, e));
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
  const bool again = work.split_first && !(of_keys && work.args.norm_key.data != nullptr);
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

}  // namespace

}  // namespace fx
