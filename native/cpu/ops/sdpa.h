// Arguments of the `sdpa` kernels.
#pragma once

#include <cstdint>

#include "../dtype.h"
#include "../parallel.h"

namespace fx {

// out[b, h, i] = Σ_j softmax_j(scale · query[b, h, i] · key[b, g, j] + mask[b, h, i, j]) · value[b, g, j],
// g = h / (heads / groups). Query, key, value and out are of one dtype, bfloat16, float16 or float32; out is dense in
// its last dimension. All strides are in elements, any value: those of the mask are 0 where it broadcasts.
struct SdpaArgs {
  const void* query;
  const void* key;
  const void* value;
  const void* mask;  // or null
  void* out;
  int64_t batch, heads, groups, length, keys, dim, dim_v;  // groups divides heads
  int64_t query_strides[4], key_strides[4], value_strides[4], mask_strides[4];
  int64_t out_strides[3];  // batch, head, row
  Dtype dtype;
  Dtype mask_dtype;  // boolean, float32, bfloat16 or float16
  float scale;
  float softcap;       // where not 0, a scaled score s is softcap · tanh(s / softcap)
  const float* sinks;  // a further score of each head, without a value; or null
  int64_t window;      // where not 0, row i attends to keys |i - j| < window
  float fill;          // the score of a place where a boolean mask is false ...
  bool fills;          // ... replaced by it, or (false) lowered to -inf by addition
  bool causal;         // row i attends to keys j <= i
  bool precise;        // probabilities beyond the precision of bfloat16
  bool safe;           // a row whose scores are all -inf gives zeros, not NaN
};

}  // namespace fx
