// `fxrewrite::relu_linear_attention` for CUDA: which inputs the kernels take, and their arguments.

#include "relu_linear_attention.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <limits>
#include <optional>

#include "../registration.h"
#include "../tensors.h"
#include "quality.h"
#include "reference.h"

namespace fx {

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

bool takes(const TensorView& t, const TensorView& like, int64_t width) {
  return (t.dtype == Dtype::bfloat16 || t.dtype == Dtype::float32) && t.dim == 4 && t.size(0) == like.size(0) &&
         t.size(1) == like.size(1) && t.size(2) == like.size(2) && t.size(3) == width;
}

// Do the angles' functions broadcast to pairs of the features?
bool turns(const TensorView& t, const TensorView& features) {
  if ((t.dtype != Dtype::bfloat16 && t.dtype != Dtype::float32) || t.dim < 1 || t.dim > 4 ||
      t.size(-1) * 2 != features.size(3))
    return false;
  for (int64_t d = -t.dim; d < -1; ++d)
    if (t.size(d) != 1 && t.size(d) != features.size(d)) return false;
  return true;
}

Source broadcast(const TensorView& t) {
  Source source{};
  source.data = t.data;
  source.wide = t.dtype == Dtype::float32;
  for (int64_t d = -t.dim; d < 0; ++d)
    if (t.size(d) != 1) source.strides[4 + d] = t.stride(d);
  return source;
}

Source source_of(const TensorView& t, bool relu) {
  Source source{};
  source.data = t.data;
  source.wide = t.dtype == Dtype::float32;
  source.relu = relu;
  for (int64_t d = 0; d < 4; ++d) source.strides[d] = t.stride(d);
  source.by_token = t.stride(3) != 1 && t.stride(2) == 1;
  const int contiguous = source.by_token ? 2 : 3, together = source.wide ? 4 : 8;
  source.vectors = t.stride(contiguous) == 1 && reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
  for (int d = 0; d < 4; ++d)
    if (d != contiguous && t.size(d) > 1 && t.stride(d) % together != 0) source.vectors = false;
  return source;
}

Tensor relu_linear_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                             const std::optional<Tensor>& norm_query, const std::optional<Tensor>& norm_key,
                             const std::optional<Tensor>& cos, const std::optional<Tensor>& sin, double eps,
                             std::optional<double> floor, bool relu, std::optional<ScalarType> out_dtype,
                             bool channel_major) {
  const TensorView q = view(query), k = view(key), v = view(value);
  std::optional<TensorView> norm_q, norm_k, turn_cos, turn_sin;
  if (norm_query) norm_q = view(*norm_query);
  if (norm_key) norm_k = view(*norm_key);
  if (cos) turn_cos = view(*cos);
  if (sin) turn_sin = view(*sin);
  const bool wide = out_dtype ? *out_dtype == ScalarType::Float : v.dtype == Dtype::float32;
  const bool narrow = out_dtype ? *out_dtype == ScalarType::BFloat16 : v.dtype == Dtype::bfloat16;
  const int32_t device = common_device({&query, &key, &value, norm_query ? &*norm_query : nullptr,
                                        norm_key ? &*norm_key : nullptr, cos ? &*cos : nullptr, sin ? &*sin : nullptr});

  const bool taken = device >= 0 && (wide || narrow) && q.dim == 4 && v.dim == 4 && takes(q, q, q.size(3)) &&
                     takes(k, q, q.size(3)) && takes(v, q, v.size(3)) && norm_q.has_value() == norm_k.has_value() &&
                     (!norm_q || (takes(*norm_q, q, q.size(3)) && takes(*norm_k, q, q.size(3)))) &&
                     turn_cos.has_value() == turn_sin.has_value() &&
                     (!turn_cos || (turns(*turn_cos, q) && turns(*turn_sin, q) && !norm_q)) && q.numel() != 0 &&
                     v.numel() != 0 && q.size(0) * q.size(1) <= most_heads &&
                     device_properties(device).capability >= least_capability;
  if (!taken)
    return call_reference("relu_linear_attention", "fxrewrite::relu_linear_attention_reference", query, key, value,
                          norm_query, norm_key, cos, sin, eps, floor, relu, out_dtype, channel_major);

  ReluLinearAttentionArgs args{};
  args.query = source_of(q, relu), args.key = source_of(k, relu), args.value = source_of(v, false);
  if (norm_q) args.norm_query = source_of(*norm_q, false), args.norm_key = source_of(*norm_k, false);
  if (turn_cos) {
    args.cos = broadcast(*turn_cos), args.sin = broadcast(*turn_sin);
    args.query.turned = args.key.turned = true;
  }
  args.batch = q.size(0), args.heads = q.size(1), args.tokens = q.size(2), args.dim = q.size(3), args.dim_v = v.size(3);
  args.eps = static_cast<float>(eps);
  args.floor = floor ? static_cast<float>(*floor) : -std::numeric_limits<float>::infinity();
  args.channel_major = channel_major;
  args.wide_out = wide;
  args.bf16_operands = bf16_operands_allowed();

  const int64_t sizes[] = {args.batch, args.heads, args.tokens, args.dim_v};
  const int64_t head = args.tokens * args.dim_v;
  const int64_t strides[] = {args.heads * head, head, channel_major ? 1 : args.dim_v, channel_major ? args.tokens : 1};
  Tensor out = new_tensor(query, wide ? Dtype::float32 : Dtype::bfloat16, sizes, strides, 4);
  args.out = out.data_ptr();
  const ReluLinearAttentionPlan plan = plan_relu_linear_attention(args, device_properties(device));
  const Tensor workspace = new_workspace(query, plan.workspace_bytes);
  const OnDevice guard(device);
  run_relu_linear_attention(args, plan, workspace.data_ptr(), current_stream(device));
  const bool lowered = args.bf16_operands && (args.key.wide || args.value.wide);
  count("relu_linear_attention", "cuda",
        lowered ? (channel_major ? "channels_bf16" : "tokens_bf16") : (channel_major ? "channels" : "tokens"));
  return out;
}

FX_CUDA_LIBRARY_IMPL(m) { m.impl("relu_linear_attention", TORCH_BOX(&relu_linear_attention)); }

}  // namespace

}  // namespace fx
