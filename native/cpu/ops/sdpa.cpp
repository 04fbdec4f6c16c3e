// `fxrewrite::sdpa`: which inputs the kernels take, and their arguments.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "../engine/base.h"
#include "../kernels.h"
#include "../pool.h"
#include "../reference.h"
#include "../tensor_view.h"

namespace fx {

namespace {

using torch::stable::Tensor;

bool representable(double value) {
  return !std::isfinite(value) || std::fabs(value) <= std::numeric_limits<float>::max();
}

bool takes_mask(const TensorView& mask, const TensorView& q, int64_t keys, bool fused) {
  // The fused call accepts fewer masks than the formula does; its refusals are the reference's to make.
  const bool dtype = mask.dtype == Dtype::boolean || mask.dtype == Dtype::float32 || mask.dtype == q.dtype ||
                     (!fused && (mask.dtype == Dtype::bfloat16 || mask.dtype == Dtype::float16));
  if (!dtype || mask.dim > 4 || (fused && mask.dim < 2)) return false;
  const int64_t full[] = {q.size(0), q.size(1), q.size(2), keys};
  for (int64_t d = 1; d <= mask.dim; ++d)
    if (mask.size(-d) != 1 && mask.size(-d) != full[4 - d]) return false;
  return true;
}

bool takes(const TensorView& q, const TensorView& k, const TensorView& v, bool gqa) {
  if (q.dtype != Dtype::bfloat16 && q.dtype != Dtype::float16 && q.dtype != Dtype::float32) return false;
  if (k.dtype != q.dtype || v.dtype != q.dtype) return false;
  if (q.dim != 4 || k.dim != 4 || v.dim != 4) return false;
  if (q.numel() == 0 || k.numel() == 0 || v.numel() == 0) return false;
  if (k.size(0) != q.size(0) || v.size(0) != q.size(0) || k.size(3) != q.size(3)) return false;
  if (v.size(1) != k.size(1) || v.size(2) != k.size(2)) return false;
  return gqa ? q.size(1) % k.size(1) == 0 : q.size(1) == k.size(1);
}

bool takes_softcap(double softcap) {
  return softcap == 0 || (std::fabs(softcap) > 0x1p-100 && std::fabs(softcap) < 0x1p100);
}

// The sinks of all heads as float; false where the tensor is none that the kernels take.
bool read_sinks(const TensorView& sinks, int64_t heads, std::vector<float>& scores) {
  if (sinks.dim != 1 || sinks.size(0) != heads) return false;
  if (sinks.dtype != Dtype::float32 && sinks.dtype != Dtype::bfloat16 && sinks.dtype != Dtype::float16) return false;
  for (int64_t h = 0; h < heads; ++h) {
    const int64_t at = h * sinks.stride(0);
    if (sinks.dtype == Dtype::float32)
      scores.push_back(sinks.as<float>()[at]);
    else if (sinks.dtype == Dtype::bfloat16)
      scores.push_back(to_float(sinks.as<bf16>()[at]));
    else
      scores.push_back(to_float(sinks.as<f16>()[at]));
  }
  return true;
}

// Where the fused call leaves its own kernel, its probabilities are float32: ours may not be bfloat16 there.
bool eager_is_precise(const TensorView& q, const TensorView& k, const TensorView& v,
                      const std::optional<TensorView>& mask) {
  const bool own_kernel = q.size(3) == v.size(3) && q.stride(3) == 1 && k.stride(3) == 1 && v.stride(3) == 1 &&
                          (!mask || ((mask->dim == 2 || mask->dim == 4) && mask->stride(-1) == 1));
  return !own_kernel;
}

void copy_strides(const TensorView& t, int64_t* strides) {
  for (int64_t d = 0; d < 4; ++d) strides[d] = t.stride(d);
}

void set_mask(const TensorView& mask, SdpaArgs& args) {
  args.mask = mask.data;
  args.mask_dtype = mask.dtype;
  for (int64_t d = 1; d <= mask.dim; ++d) args.mask_strides[4 - d] = mask.size(-d) == 1 ? 0 : mask.stride(-d);
}

Tensor sdpa(const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& attn_mask,
            bool is_causal, std::optional<double> scale, bool enable_gqa, std::optional<double> mask_fill,
            bool safe_softmax, bool token_major, double softcap, const std::optional<Tensor>& sinks, int64_t window) {
  const TensorView q = view(query), k = view(key), v = view(value);
  // The framework's fused call, perhaps with a mask that is known to be a window.
  const bool plain = !mask_fill && safe_softmax && softcap == 0 && !sinks;
  const bool fused = plain && window == 0;
  // Scores that the replaced code holds in float16 overflow; where they do, only the reference knows.
  const bool overflows = q.dtype == Dtype::float16 && !plain;
  bool taken = takes(q, k, v, enable_gqa) && !overflows && representable(scale.value_or(0)) &&
               representable(mask_fill.value_or(0)) && !std::isnan(mask_fill.value_or(0)) && takes_softcap(softcap) &&
               window >= 0;
  std::optional<TensorView> mask;
  if (attn_mask) {
    mask = view(*attn_mask);
    taken = taken && takes_mask(*mask, q, k.size(2), fused) && !(fused && is_causal);
  }
  std::vector<float> sink_scores;
  if (sinks) taken = taken && read_sinks(view(*sinks), q.size(1), sink_scores);
  if (!taken)
    return call_reference("sdpa", "fxrewrite::sdpa_reference", query, key, value, attn_mask, is_causal, scale,
                          enable_gqa, mask_fill, safe_softmax, token_major, softcap, sinks, window);

  SdpaArgs args{};
  args.query = q.data, args.key = k.data, args.value = v.data;
  args.batch = q.size(0), args.heads = q.size(1), args.groups = k.size(1);
  args.length = q.size(2), args.keys = k.size(2), args.dim = q.size(3), args.dim_v = v.size(3);
  copy_strides(q, args.query_strides), copy_strides(k, args.key_strides), copy_strides(v, args.value_strides);
  if (mask) set_mask(*mask, args);
  args.dtype = q.dtype;
  args.scale = static_cast<float>(scale ? *scale : 1.0 / std::sqrt(static_cast<double>(args.dim)));
  args.softcap = static_cast<float>(softcap);
  args.sinks = sinks ? sink_scores.data() : nullptr;
  args.window = std::min(window, args.length + args.keys);
  args.fills = mask_fill.has_value();
  args.fill = static_cast<float>(mask_fill.value_or(0));
  args.causal = is_causal;
  args.safe = safe_softmax;
  args.precise = plain && q.dtype == Dtype::bfloat16 && eager_is_precise(q, k, v, mask);

  const int64_t sizes[] = {args.batch, args.heads, args.length, args.dim_v};
  const int64_t head = token_major ? args.dim_v : args.length * args.dim_v;
  const int64_t row = token_major ? args.heads * args.dim_v : args.dim_v;
  const int64_t strides[] = {args.heads * args.length * args.dim_v, head, row, 1};
  for (int d = 0; d < 3; ++d) args.out_strides[d] = strides[d];
  Tensor out = empty_strided(query, sizes, strides, 4);
  args.out = out.data_ptr();
  const KernelTable& table = kernels();
  count("sdpa", table.name, table.sdpa(args, torch_pool()));
  return out;
}

STABLE_TORCH_LIBRARY_IMPL(fxrewrite, CPU, m) { m.impl("sdpa", TORCH_BOX(&sdpa)); }

}  // namespace

}  // namespace fx
