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

bool is_fp8(Dtype dtype) {
  return dtype == Dtype::float8_e4m3fn || dtype == Dtype::float8_e5m2 || dtype == Dtype::float8_e4m3fnuz ||
         dtype == Dtype::float8_e5m2fnuz;
}

bool supported(const TensorView& x, const TensorView& weight, const std::optional<TensorView>& bias) {
  return (x.dtype == Dtype::bfloat16 || x.dtype == Dtype::float16 || x.dtype == Dtype::float32) &&
         is_fp8(weight.dtype) && x.dim >= 1 && weight.dim == 2 && x.size(-1) == weight.size(1) &&
         (!bias || (bias->dtype == x.dtype && bias->dim == 1 && bias->size(0) == weight.size(0)));
}

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

float largest_code(Dtype dtype) {
  switch (dtype) {
    case Dtype::float8_e4m3fn:
      return 448.0f;
    case Dtype::float8_e4m3fnuz:
      return 240.0f;
    default:
      return 57344.0f;
  }
}

// A scale as the kernels take it: fp32, dense, the tensor's own memory where it is that already.
struct Scale {
  WeightScale kernel{};
  std::vector<float> values;
  bool usable = false;
};

// `block` is null where the scale broadcasts to [n, k]; the grid of blocks then has one row or n, one column or k.
Scale scale_of(const TensorView& tensor, const TensorView& weight, const std::vector<int64_t>* block) {
  Scale scale;
  const int64_t n = weight.size(0), k = weight.size(1);
  const int64_t rows = tensor.dim >= 2 ? tensor.size(-2) : 1, columns = tensor.dim >= 1 ? tensor.size(-1) : 1;
  if (rows * columns != tensor.numel() || rows < 1 || columns < 1) return scale;
  if (block != nullptr && (block->size() != 2 || (*block)[0] < 1 || (*block)[1] < 1 || tensor.dim != 2)) return scale;
  const int64_t block_n = block != nullptr ? (*block)[0] : rows == 1 ? (n > 1 ? n : 1) : 1;
  const int64_t block_k = block != nullptr ? (*block)[1] : columns == 1 ? (k > 1 ? k : 1) : 1;
  if (rows != (n + block_n - 1) / block_n || columns != (k + block_k - 1) / block_k) return scale;
  // A scale for nearly each element is no scale but a second weight.
  const bool own = tensor.dtype == Dtype::float32 && (columns == 1 || tensor.stride(-1) == 1);
  if (!own && rows * columns > 4096 && rows * columns > n * k / 16) return scale;

  const int64_t row_stride = tensor.dim >= 2 ? tensor.stride(-2) : 0, stride = tensor.dim >= 1 ? tensor.stride(-1) : 0;
  const bool each_row = columns == 1 && rows > 1;  // the kernels want these dense, an element for each row
  const bool copied = !own || (each_row && (row_stride != 1 || block_n > 1));
  const int64_t repeats = each_row ? block_n : 1;
  if (copied) {
    scale.values.reserve(static_cast<size_t>(rows * columns * repeats));
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c)
        scale.values.insert(scale.values.end(), static_cast<size_t>(repeats),
                            scale_element(tensor, r * row_stride + c * stride));
  }
  scale.kernel = {copied ? scale.values.data() : tensor.as<float>(), rows == 1 ? 0 : (copied ? columns : row_stride),
                  columns == 1 ? 0 : 1, each_row ? 1 : block_n, block_k};

  // The reference rounds scale·weight to the dtype of x. Where that can overflow (or the scale is no number),
  // its infinities and NaNs are not those of a scaled sum: those inputs are the reference's.
  const float most = 3.38e38f / largest_code(weight.dtype);
  scale.usable = true;
  for (int64_t r = 0; r < (each_row ? n : rows); ++r) {
    const float* row = scale.kernel.values + r * scale.kernel.stride_n;
    for (int64_t c = 0; c < columns; ++c)
      if (!(std::fabs(row[c]) <= most)) scale.usable = false;
  }
  return scale;
}

Tensor fp8_linear(Tensor x, Tensor weight, std::optional<Tensor> scale, std::optional<Tensor> bias,
                  std::optional<std::vector<int64_t>> block) {
  const TensorView w = view(weight);
  TensorView in = view(x);
  std::optional<TensorView> b, s;
  if (bias) b = view(*bias);
  if (scale) s = view(*scale);
  bool usable = supported(in, w, b);
  Scale factors;
  if (usable && s) {
    factors = scale_of(*s, w, block ? &*block : nullptr);
    usable = factors.usable;
  }
  if (!usable) return call_reference("fp8_linear", "fxrewrite::fp8_linear_reference", x, weight, scale, bias, block);

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
          .out = out.data_ptr(),
          .scale = factors.kernel,
          .m = rows.count,
          .n = w.size(0),
          .k = w.size(1),
          .x_stride = rows.stride,
          .weight_stride_n = w.stride(0),
          .weight_stride_k = w.stride(1),
          .dtype = in.dtype,
          .weight_dtype = w.dtype,
      },
      torch_pool());
  count("fp8_linear", table.name, algorithm);
  return out;
}

STABLE_TORCH_LIBRARY_IMPL(fxrewrite, CPU, m) { m.impl("fp8_linear", TORCH_BOX(&fp8_linear)); }

}  // namespace

}  // namespace fx
