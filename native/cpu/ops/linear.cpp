// fxrewrite::linear on the CPU.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

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
  return (x.dtype == Dtype::bfloat16 || x.dtype == Dtype::float32) && weight.dtype == x.dtype && x.dim >= 1 &&
         weight.dim == 2 && x.size(-1) == weight.size(1) &&
         (!bias || (bias->dtype == x.dtype && bias->dim == 1 && bias->size(0) == weight.size(0)));
}

Tensor linear(Tensor x, Tensor weight, std::optional<Tensor> bias) {
  const TensorView w = view(weight);
  TensorView in = view(x);
  std::optional<TensorView> b;
  if (bias) b = view(*bias);
  if (!supported(in, w, b)) return call_reference("linear", "fxrewrite::linear_reference", x, weight, bias);

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
  const char* algorithm = table.linear(
      LinearArgs{
          .x = in.data,
          .weight = w.data,
          .bias = b ? b->data : nullptr,
          .out = out.data_ptr(),
          .m = rows.count,
          .n = w.size(0),
          .k = w.size(1),
          .x_stride = rows.stride,
          .weight_stride_n = w.stride(0),
          .weight_stride_k = w.stride(1),
          .dtype = in.dtype,
      },
      torch_pool());
  count("linear", table.name, algorithm);
  return out;
}

STABLE_TORCH_LIBRARY_IMPL(fxrewrite, CPU, m) { m.impl("linear", TORCH_BOX(&linear)); }

}  // namespace

}  // namespace fx
