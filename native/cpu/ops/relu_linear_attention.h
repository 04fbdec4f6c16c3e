// Arguments of the `relu_linear_attention` kernels.
#pragma once

#include <cstdint>

#include "../dtype.h"
#include "../parallel.h"

namespace fx {

// One [batch, heads, tokens, width] input: bfloat16 or float32, any strides (in elements).
struct TokenTensor {
  const void* data;
  int64_t strides[4];
  Dtype dtype;
};

// out_i = Σ_j φ(k_j)·φ(q_i) v_j / (max(Σ_j norm_k_j·norm_q_i, floor) + eps), φ = ReLU where `relu`, else identity.
// Without norm tensors (null data) the normaliser's features are φ(q) and φ(k).
// With cos and sin [.., tokens, dim / 2] (strides 0 where they broadcast) the numerator's are those, each pair
// (2i, 2i + 1) turned: dim is even then, and there are no norm tensors.
// `bf16_operands`: key and value may be taken as if they were bfloat16 where products of it are faster.
struct ReluLinearAttentionArgs {
  TokenTensor query, key, value, norm_query, norm_key, cos, sin;
  void* out;
  int64_t out_strides[4];  // one of the last two is 1
  Dtype out_dtype;         // bfloat16 or float32
  int64_t batch, heads, tokens, dim, dim_v;
  float floor, eps;
  bool relu;
  bool bf16_operands;
};

}  // namespace fx
