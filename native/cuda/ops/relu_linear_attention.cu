// Attention that is linear in the number of tokens, in two passes over memory and a small step between.
//
// tabulate:  cos and sin, where there are any, as summarise and apply read them.
// summarise: every block adds up φ(k)ᵀ v [W, W] and the normaliser's sum of keys over a chunk of tokens.
// combine:   the chunks' sums become one summary a head, in fp32 and split into three bfloat16 terms.
// apply:     queries times summary, divided by the normaliser on the way out.
//
// All products run on the tensor cores. Products of bfloat16 are exact there. fp32 operands are split into
// three terms, of whose products the six that matter are added; at quality "high" keys and values are rounded to
// one, for their products alone: the sum of keys, and what follows, stays fp32. The tensor cores cut their sums where
// fp32 arithmetic rounds, so only short sums are left to them. Where a split operand is infinite, a sum comes out NaN;
// such sums are computed again in plain fp32, so that only those stay NaN that are.

#include "relu_linear_apply.inl.h"
#include "relu_linear_attention.h"
#include "relu_linear_combine.inl.h"
#include "relu_linear_summarise.inl.h"
#include "relu_linear_turn.inl.h"

namespace fx {

namespace {

template <int W, int Terms, bool ByToken, bool Prepared = false>
void launch_summarise(const Work& work, Stream stream) {
  const int64_t norm_blocks = work.args.norm_key.data != nullptr ? work.d_blocks : 0;
  launch(summarise<W, Terms, ByToken, Prepared>,
         {work.chunks, work.heads(), work.d_blocks * work.e_blocks + norm_blocks}, Summarise<W>::threads,
         summarise_bytes<W, Terms, ByToken, Prepared>(), stream, work);
}

template <int W, int Terms, bool ByToken, bool InFragments = false>
void launch_apply(Work work, Stream stream) {
  using Size = Apply<W, Terms, ByToken>;
  work.apply_slots = Terms == 1 && Size::bytes(2) <= work.shared_bytes ? 2 : 1;
  work.apply_chunk = round_up(work.chunk, Size::tokens);
  launch(apply<W, Terms, ByToken, InFragments>,
         {divide_up(work.args.tokens, work.apply_chunk), work.heads(), work.e_blocks}, Size::threads,
         static_cast<size_t>(Size::bytes(work.apply_slots)), stream, work);
}

template <int W>
void launch_width(const Work& work, bool split_second, Stream stream) {
  const auto& args = work.args;
  const bool prepared = args.key.turned || args.key.wide || args.value.wide;
  if (work.split_first)
    launch_summarise<W, 3, false>(work, stream);
  else if (prepared)
    launch_summarise<W, 1, false, true>(work, stream);
  else if (args.key.by_token && args.value.by_token)
    launch_summarise<W, 1, true>(work, stream);
  else
    launch_summarise<W, 1, false>(work, stream);
  launch(combine, {divide_up(work.rows() * (work.columns() + 1), combine_threads), work.heads()}, combine_threads, 0,
         stream, work);
  if (split_second)
    launch_apply<W, 3, false>(work, stream);
  else if (args.query.turned)
    launch_apply<W, 1, false, true>(work, stream);
  else if (args.query.by_token)
    launch_apply<W, 1, true>(work, stream);
  else
    launch_apply<W, 1, false>(work, stream);
}

// Sizes of the workspace's parts, in bytes and in order.
struct Sizes {
  int64_t partial, partial_sums, summary, key_sums, planes, sum_planes, turns;
};

Sizes sizes(const ReluLinearAttentionArgs& args, const ReluLinearAttentionPlan& plan) {
  const int64_t heads = args.batch * args.heads, rows = plan.d_blocks * plan.width;
  const int64_t matrix = rows * plan.e_blocks * plan.width;
  return {4 * heads * plan.chunks * matrix,
          4 * heads * plan.chunks * rows,
          4 * heads * matrix,
          4 * heads * rows,
          2 * heads * 3 * matrix,
          2 * heads * 3 * rows,
          4 * plan.turn_tables * args.tokens * rows};
}

// Do batch entries (dim 0) or heads (dim 1) differ in their angles?
bool turns_differ(const ReluLinearAttentionArgs& args, int dim) {
  return args.cos.strides[dim] != 0 || args.sin.strides[dim] != 0;
}
int64_t turn_batches(const ReluLinearAttentionArgs& args) { return turns_differ(args, 0) ? args.batch : 1; }
int64_t turn_heads(const ReluLinearAttentionArgs& args) { return turns_differ(args, 1) ? args.heads : 1; }

}  // namespace

ReluLinearAttentionPlan plan_relu_linear_attention(const ReluLinearAttentionArgs& args,
                                                   const DeviceProperties& device) {
  ReluLinearAttentionPlan plan{};
  const int64_t widest = larger(args.dim, args.dim_v);
  plan.width = widest <= 32 ? 32 : widest <= 64 || widest > 112 ? 64 : 112;
  plan.d_blocks = divide_up(args.dim, plan.width), plan.e_blocks = divide_up(args.dim_v, plan.width);
  plan.shared_bytes = device.shared_bytes;
  plan.split_first = !args.bf16_operands && (args.key.wide || args.value.wide);
  plan.split_second = args.query.wide || args.norm_query.wide;
  plan.turn_tables = args.key.turned ? turn_batches(args) * turn_heads(args) : 0;
  // One wave of blocks, of 256 tokens or more.
  const int64_t at_once = (plan.width == 32 ? 4 : 2) * device.multiprocessors;
  const int64_t wanted = larger(at_once / (args.batch * args.heads * plan.d_blocks * plan.e_blocks), 1);
  plan.chunk = round_up(larger(divide_up(args.tokens, wanted), 256), 64);
  plan.chunks = divide_up(args.tokens, plan.chunk);
  const Sizes s = sizes(args, plan);
  plan.workspace_bytes = s.partial + s.partial_sums + s.summary + s.key_sums + s.planes + s.sum_planes + s.turns;
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
  // Features that are turned, or rounded, on their way into split or transposed tiles leave no others there: the
  // normaliser's are read again.
  const auto as_it_is = [](Source source) {
    source.turned = false;
    return source;
  };
  if (args.norm_key.data == nullptr && (args.key.turned ? plan.split_first : args.key.by_token && !plan.split_first))
    work.args.norm_key = as_it_is(args.key);
  if (args.key.turned && plan.split_second) work.args.norm_query = as_it_is(args.query);
  work.d_blocks = plan.d_blocks, work.e_blocks = plan.e_blocks;
  work.chunks = plan.chunks, work.chunk = plan.chunk;
  work.split_first = plan.split_first;
  work.width = plan.width, work.shared_bytes = plan.shared_bytes;
  work.partial = reinterpret_cast<float*>(take(s.partial));
  work.partial_sums = reinterpret_cast<float*>(take(s.partial_sums));
  work.summary = reinterpret_cast<float*>(take(s.summary));
  work.key_sums = reinterpret_cast<float*>(take(s.key_sums));
  work.planes = reinterpret_cast<uint16_t*>(take(s.planes));
  work.sum_planes = reinterpret_cast<uint16_t*>(take(s.sum_planes));
  if (args.key.turned) {
    work.turns = reinterpret_cast<float*>(take(s.turns));
    work.turn_batches = turn_batches(args), work.turn_heads = turn_heads(args);
    launch(tabulate, {divide_up(args.tokens * (work.rows() / 2), tabulate_threads), plan.turn_tables}, tabulate_threads,
           0, stream, work);
  }
  switch (plan.width) {
    case 32:
      return launch_width<32>(work, plan.split_second, stream);
    case 64:
      return launch_width<64>(work, plan.split_second, stream);
    default:
      return launch_width<112>(work, plan.split_second, stream);
  }
}

}  // namespace fx
