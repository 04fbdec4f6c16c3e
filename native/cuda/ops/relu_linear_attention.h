// `relu_linear_attention` on the GPU: its arguments and its launch.
#pragma once

#include "../runtime.h"
#include "../source.h"

namespace fx {

// out_i = Σ_j φ(k_j)·φ(q_i) v_j / (max(Σ_j norm_k_j·norm_q_i, floor) + eps), φ = ReLU where `relu`, else identity.
// Without norm tensors (null data) the normaliser's features are φ(q) and φ(k).
// With cos and sin (strides 0 where they broadcast to [.., tokens, dim / 2]) the numerator's are those, each pair
// (2i, 2i + 1) turned: query and key say `turned`, dim is even, and there are no norm tensors.
// `bf16_operands`: keys and values may be rounded to bfloat16 for their products with each other.
struct ReluLinearAttentionArgs {
  Source query, key, value, norm_query, norm_key, cos, sin;
  void* out;           // contiguous [batch, heads, tokens, dim_v], or with the last two exchanged in memory
  bool channel_major;  // exchanged
  bool wide_out;       // float32, else bfloat16
  int64_t batch, heads, tokens, dim, dim_v;
  float floor, eps;
  bool bf16_operands;
};

// How a call is cut into blocks, and what it needs beside its result. The cut depends on the sizes and the
// device alone, so the same call gives the same bits.
struct ReluLinearAttentionPlan {
  int width;                   // of a square block of the summary: 32, 64 or 112
  int64_t d_blocks, e_blocks;  // that many of them, over dim and dim_v
  int64_t chunks, chunk;       // of tokens, each summed by one thread block
  int shared_bytes;            // that a block may have
  bool split_first;            // operands of the first product, keys and values, are split into three terms
  bool split_second;           // queries are, of either kind
  int64_t turn_tables;         // of cos and sin: for each batch entry and head, unless they share them
  int64_t workspace_bytes;
};

// Tokens times heads of a launch are bounded by CUDA's grids.
constexpr int64_t most_heads = 65535;

ReluLinearAttentionPlan plan_relu_linear_attention(const ReluLinearAttentionArgs& args, const DeviceProperties& device);

// `workspace`: plan.workspace_bytes, aligned to 16.
void run_relu_linear_attention(const ReluLinearAttentionArgs& args, const ReluLinearAttentionPlan& plan,
                               void* workspace, Stream stream);

}  // namespace fx
