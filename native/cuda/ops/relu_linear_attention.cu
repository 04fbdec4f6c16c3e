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

#include "relu_linear_apply.inl.h"
#include "relu_linear_attention.h"
#include "relu_linear_combine.inl.h"
#include "relu_linear_summarise.inl.h"

namespace fx {

namespace {

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
