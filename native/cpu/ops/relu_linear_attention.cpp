// `fxrewrite::relu_linear_attention`: which inputs the kernels take, and their arguments.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <limits>
#include <optional>

#include "../kernels.h"
#include "../pool.h"
#include "../quality.h"
#include "../reference.h"
#include "../tensor_view.h"

namespace fx {

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

bool float_dtype(Dtype dtype) { return dtype == Dtype::bfloat16 || dtype == Dtype::float32; }

bool takes(const TensorView& t, const TensorView& like, int64_t width) {
  return float_dtype(t.dtype) && t.dim == 4 && t.size(0) == like.size(0) && t.size(1) == like.size(1) &&
         t.size(2) == like.size(2) && t.size(3) == width;
}

// Do the angles' functions broadcast to pairs of the features?
bool turns(const TensorView& t, const TensorView& features) {
  if (!float_dtype(t.dtype) || t.dim < 1 || t.dim > 4 || t.size(-1) * 2 != features.size(3)) return false;
  for (int64_t d = -t.dim; d < -1; ++d)
    if (t.size(d) != 1 && t.size(d) != features.size(d)) return false;
  return true;
}

TokenTensor token_tensor(const TensorView& t) {
  return {t.data, {t.stride(0), t.stride(1), t.stride(2), t.stride(3)}, t.dtype};
}

TokenTensor broadcast(const TensorView& t) {
  TokenTensor all{t.data, {}, t.dtype};
  for (int64_t d = -t.dim; d < 0; ++d)
    if (t.size(d) != 1) all.strides[4 + d] = t.stride(d);
  return all;
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

  const bool taken =
      (wide || narrow) && q.dim == 4 && v.dim == 4 && takes(q, q, q.size(3)) && takes(k, q, q.size(3)) &&
      takes(v, q, v.size(3)) && norm_q.has_value() == norm_k.has_value() &&
      (!norm_q ||
       (takes(*norm_q, q, norm_q->size(3)) && takes(*norm_k, q, norm_q->size(3)) && norm_q->size(3) == q.size(3))) &&
      turn_cos.has_value() == turn_sin.has_value() &&
      (!turn_cos || (turns(*turn_cos, q) && turns(*turn_sin, q) && !norm_q)) && q.numel() != 0 && v.numel() != 0;
  if (!taken)
    return call_reference("relu_linear_attention", "fxrewrite::relu_linear_attention_reference", query, key, value,
                          norm_query, norm_key, cos, sin, eps, floor, relu, out_dtype, channel_major);

  ReluLinearAttentionArgs args{};
  args.query = token_tensor(q), args.key = token_tensor(k), args.value = token_tensor(v);
  if (norm_q) args.norm_query = token_tensor(*norm_q), args.norm_key = token_tensor(*norm_k);
  if (turn_cos) args.cos = broadcast(*turn_cos), args.sin = broadcast(*turn_sin);
  args.batch = q.size(0), args.heads = q.size(1), args.tokens = q.size(2), args.dim = q.size(3), args.dim_v = v.size(3);
  args.eps = static_cast<float>(eps);
  args.floor = floor ? static_cast<float>(*floor) : -std::numeric_limits<float>::infinity();
  args.relu = relu;
  args.bf16_operands = bf16_operands_allowed();
  args.out_dtype = wide ? Dtype::float32 : Dtype::bfloat16;

  const int64_t sizes[] = {args.batch, args.heads, args.tokens, args.dim_v};
  const int64_t head = args.tokens * args.dim_v;
  const int64_t strides[] = {args.heads * head, head, channel_major ? 1 : args.dim_v, channel_major ? args.tokens : 1};
  for (int d = 0; d < 4; ++d) args.out_strides[d] = strides[d];
  Tensor out = empty_strided(args.out_dtype, sizes, strides, 4);
  args.out = out.data_ptr();
  const KernelTable& table = kernels();
  count("relu_linear_attention", table.name, table.relu_linear_attention(args, torch_pool()));
  return out;
}

STABLE_TORCH_LIBRARY_IMPL(fxrewrite, CPU, m) { m.impl("relu_linear_attention", TORCH_BOX(&relu_linear_attention)); }

}  // namespace

}  // namespace fx
