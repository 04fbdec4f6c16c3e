// fxrewrite::fp8_linear on the CPU.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <cmath>
#include <optional>
#include <vector>

#include "../kernels.h"
#include "../pool.h"
#include "../reference.h"
#include "../tensor_view.h"
#include "rows.h"

namespace fx {

namespace {

using torch::stable::Tensor;

bool supported(const TensorView& x, const TensorView& weight, const std::optional<TensorView>& bias) {
  return x.dtype == Dtype::bfloat16 && (weight.dtype == Dtype::float8_e4m3fn || weight.dtype == Dtype::float8_e5m2) &&
         x.dim >= 1 && weight.dim == 2 && x.size(-1) == weight.size(1) &&
         (!bias || (bias->dtype == x.dtype && bias->dim == 1 && bias->size(0) == weight.size(0)));
}

// The scale as fp32 factors of the output columns: none, one, or n.
struct Scale {
  std::vector<float> values;
  int64_t stride = 0;
  bool usable = true;
};

float scale_element(const TensorView& scale, int64_t index) {
  switch (scale.dtype) {
    case Dtype::float32:
      return scale.as<float>()[index];
    case Dtype::float64:
      return static_cast<float>(scale.as<double>()[index]);
    case Dtype::float16:
      return static_cast<float>(scale.as<torch::headeronly::Half>()[index]);
    case Dtype::bfloat16:
      return static_cast<float>(scale.as<torch::headeronly::BFloat16>()[index]);
    default:
      return NAN;
  }
}

Scale scale_of(const std::optional<TensorView>& tensor, const TensorView& weight) {
  Scale scale;
  if (!tensor) return scale;
  const int64_t n = weight.size(0);
  const bool per_tensor = tensor->dim <= 2 && tensor->numel() == 1;
  const bool per_channel = tensor->dim == 2 && tensor->size(0) == n && tensor->size(1) == 1;
  if (!per_tensor && !per_channel) return {{}, 0, false};

  // The reference rounds scale·weight to bfloat16. Where that can overflow (or the scale is no number),
  // its infinities and NaNs are not those of a scaled sum: those inputs are the reference's.
  const float largest = weight.dtype == Dtype::float8_e4m3fn ? 448.0f : 57344.0f;
  scale.stride = per_tensor ? 0 : 1;
  scale.values.resize(per_tensor ? 1 : static_cast<size_t>(n));
  for (size_t i = 0; i < scale.values.size(); ++i) {
    const float value = scale_element(*tensor, per_tensor ? 0 : static_cast<int64_t>(i) * tensor->stride(0));
    scale.values[i] = value;
    if (!(std::fabs(value) * largest <= 3.38e38f)) scale.usable = false;
  }
  return scale;
}

Tensor fp8_linear(Tensor x, Tensor weight, std::optional<Tensor> scale, std::optional<Tensor> bias) {
  const TensorView w = view(weight);
  TensorView in = view(x);
  std::optional<TensorView> b, s;
  if (bias) b = view(*bias);
  if (scale) s = view(*scale);
  Scale factors;
  if (supported(in, w, b))
    factors = scale_of(s, w);
  else
    factors.usable = false;
  if (!factors.usable) return call_reference("fp8_linear", "fxrewrite::fp8_linear_reference", x, weight, scale, bias);

  Rows rows = rows_of(in);
  if (!rows.usable) {
    x = torch::stable::contiguous(x);
    in = view(x);
    rows = rows_of(in);
  }
  if (b && b->size(0) > 1 && b->stride(0) != 1) {
    bias = torch::stable::contiguous(*bias);
    b = view(*bias);
  }
  std::vector<int64_t> sizes(in.sizes, in.sizes + in.dim);
  sizes.back() = w.size(0);
  Tensor out = empty_like_dtype(x, sizes.data(), in.dim);

  const KernelTable& table = kernels();
  const char* algorithm = table.fp8_linear(
      Fp8LinearArgs{
          .x = in.data,
          .weight = w.data,
          .bias = b ? b->data : nullptr,
          .scale = factors.values.empty() ? nullptr : factors.values.data(),
          .out = out.data_ptr(),
          .m = rows.count,
          .n = w.size(0),
          .k = w.size(1),
          .x_stride = rows.stride,
          .weight_stride_n = w.stride(0),
          .weight_stride_k = w.stride(1),
          .scale_stride = factors.stride,
          .weight_dtype = w.dtype,
      },
      torch_pool());
  count("fp8_linear", table.name, algorithm);
  return out;
}

STABLE_TORCH_LIBRARY_IMPL(fxrewrite, CPU, m) { m.impl("fp8_linear", TORCH_BOX(&fp8_linear)); }

}  // namespace

}  // namespace fx
