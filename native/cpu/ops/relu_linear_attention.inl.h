// The `relu_linear_attention` kernel: one pass over keys and values, one over queries.
//
// First Σ_j φ(k_j)ᵀ v_j [dim, dim_v] and Σ_j φ'(k_j) [dim], per head, in fp32 (bf16 keys and values multiply
// as bf16, which is exact; at quality "high" fp32 ones are rounded to that). Then each block of queries times that
// matrix in fp32, divided by its normaliser on the way out.
#pragma once

#include "relu_linear_apply.inl.h"
#include "relu_linear_summarise.inl.h"

namespace fx {

FX_INLINE bool are_narrow(const ReluLinearAttentionArgs& args) {
  return args.key.dtype == Dtype::bfloat16 && args.value.dtype == Dtype::bfloat16;
}

// Does the first product round its operands to bf16?
template <class Isa>
FX_INLINE bool rounds_operands(const ReluLinearAttentionArgs& args) {
  return Isa::template k_step<bf16> == 2 && args.bf16_operands && !are_narrow(args);
}

// Adds the chunks' summaries of a head up into the first, and packs it where the second pass multiplies with it as
// columns.
template <class Isa>
static void combine_chunks(const ReluLinearPlan<Isa>& plan, float* summaries, float* applied) {
  const auto& args = plan.args;
  for (int64_t c = 1; c < plan.chunks; ++c)
    for (int64_t i = 0; i < plan.summary_size; ++i) summaries[i] += summaries[c * plan.summary_size + i];
  if (!plan.channel_major) gemm::pack<Isa, float>(applied, summaries, 1, args.dim_v, args.dim, args.dim_v);
}

template <class Isa>
static void relu_linear_attention(const ReluLinearAttentionArgs& args, const Parallel& pool) {
  const ReluLinearPlan<Isa> plan(args);
  const int64_t heads = args.batch * args.heads, chunks = plan.chunks;
  float *summaries = nullptr, *applied = nullptr, *turns = nullptr;
  lay_out(Scratch::user0, [&](Workspace& space) {
    turns = space.take<float>(plan.turn_tables() * args.tokens * plan.width);
    summaries = space.take<float>(heads * chunks * plan.summary_size);
    applied = space.take<float>(heads * plan.applied_size);
  });
  const int64_t few = larger(1, (16 << 10) / (smaller(plan.chunk, args.tokens) * args.dim));  // tasks worth a thread
  const int64_t group = plan.heads_together(pool.threads);
  const int64_t groups = divide_up(args.heads, group), tasks = args.batch * groups * chunks;
  const auto each_task = [&](const auto& pass) {
    parallel_for(pool, tasks, divide_up(few, group), [&](int64_t begin, int64_t end) {
      [[maybe_unused]] const typename Isa::Session session;
      for (int64_t task = begin; task < end; ++task) {
        const int64_t index = task / chunks, first = index % groups * group;
        pass.run(index / groups * args.heads + first, smaller(group, args.heads - first), task % chunks);
      }
    });
  };
  plan.tabulate_turns(turns, pool);
  if (are_narrow(args) || rounds_operands<Isa>(args))
    each_task(ReluLinearSummarise<Isa, bf16>{plan, turns, summaries});
  else
    each_task(ReluLinearSummarise<Isa, float>{plan, turns, summaries});
  parallel_for(pool, heads, larger(1, few), [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head)
      combine_chunks(plan, summaries + head * chunks * plan.summary_size, applied + head * plan.applied_size);
  });
  if (args.out_dtype == Dtype::bfloat16)
    each_task(ReluLinearApply<Isa, bf16>{plan, turns, applied, summaries});
  else
    each_task(ReluLinearApply<Isa, float>{plan, turns, applied, summaries});
}

template <class Isa>
static const char* relu_linear_attention_kernel(const ReluLinearAttentionArgs& args, const Parallel& pool) {
  relu_linear_attention<Isa>(args, pool);
  const bool tokens = args.out_strides[3] == 1;
  if (rounds_operands<Isa>(args)) return tokens ? "tokens_bf16" : "channels_bf16";
  return tokens ? "tokens" : "channels";
}

}  // namespace fx
