// fxrewrite::linear on the CPU.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../kernels.h"
#include "../pool.h"
#include "../quality.h"
#include "../reference.h"
#include "../tensor_view.h"
#include "rows.h"

namespace fx {

namespace {

using torch::stable::Tensor;

constexpr std::pair<std::string_view, Activation> activations[] = {
    {"", Activation::none},     {"relu", Activation::relu},
    {"gelu", Activation::gelu}, {"gelu_tanh", Activation::gelu_tanh},
    {"silu", Activation::silu}, {"quick_gelu", Activation::quick_gelu},
};

const Activation* activation_of(std::string_view name) {
  for (const auto& [known, activation] : activations)
    if (known == name) return &activation;
  return nullptr;
}

bool supported(const TensorView& x, const TensorView& weight, const std::optional<TensorView>& bias) {
  return (x.dtype == Dtype::bfloat16 || x.dtype == Dtype::float16 || x.dtype == Dtype::float32) &&
         weight.dtype == x.dtype && x.dim >= 1 && weight.dim == 2 && x.size(-1) == weight.size(1) &&
         (!bias || (bias->dtype == x.dtype && bias->dim == 1 && bias->size(0) == weight.size(0)));
}

// An operand of the epilogue that broadcasts to the result (`sizes` of `dim` dimensions), as rows; nullopt
// where it has another dtype, is no row along the last dimension, or needs more than two strides.
std::optional<RowOperandArgs> row_operand(const TensorView& operand, const int64_t* sizes, int64_t dim, Dtype dtype) {
  const int64_t columns = sizes[dim - 1];
  if (operand.dtype != dtype || operand.dim < 1 || operand.dim > dim || operand.size(-1) != columns ||
      (columns > 1 && operand.stride(-1) != 1))
    return std::nullopt;
  int64_t counts[2] = {1, 1}, strides[2] = {0, 0};
  int level = 0;
  for (int64_t d = 2; d <= dim; ++d) {  // from the innermost dimension of rows outwards
    const int64_t size = sizes[dim - d];
    if (size == 1) continue;
    const bool broadcast = d > operand.dim || operand.size(-d) == 1;
    if (!broadcast && operand.size(-d) != size) return std::nullopt;
    const int64_t stride = broadcast ? 0 : operand.stride(-d);
    if (counts[level] != 1 && stride != strides[level] * counts[level]) {
      if (++level == 2) return std::nullopt;
    }
    if (counts[level] == 1) strides[level] = stride;
    counts[level] *= size;
  }
  return RowOperandArgs{operand.data, counts[0], strides[1], strides[0]};
}

// The operand (and what keeps a copy of it alive, where only a copy is rows).
std::optional<RowOperandArgs> row_operand(std::optional<Tensor>& operand, const int64_t* sizes, int64_t dim,
                                          Dtype dtype) {
  if (!operand) return RowOperandArgs{};
  auto rows = row_operand(view(*operand), sizes, dim, dtype);
  if (!rows && operand->dim() == dim) {
    Tensor copy = torch::stable::contiguous(*operand);
    rows = row_operand(view(copy), sizes, dim, dtype);
    if (rows) operand = copy;
  }
  return rows;
}

Tensor linear(Tensor x, Tensor weight, std::optional<Tensor> bias, std::string activation,
              std::optional<Tensor> multiply, std::optional<Tensor> residual) {
  const TensorView w = view(weight);
  TensorView in = view(x);
  std::optional<TensorView> b;
  if (bias) b = view(*bias);
  const auto reference = [&] {
    return call_reference("linear", "fxrewrite::linear_reference", x, weight, bias, activation, multiply, residual);
  };
  const Activation* const chosen = activation_of(activation);
  if (!supported(in, w, b) || chosen == nullptr) return reference();

  std::vector<int64_t> sizes(in.sizes, in.sizes + in.dim);
  sizes.back() = w.size(0);
  const auto factor = row_operand(multiply, sizes.data(), in.dim, in.dtype);
  const auto addend = row_operand(residual, sizes.data(), in.dim, in.dtype);
  if (!factor || !addend) return reference();

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
          .activation = *chosen,
          .multiply = *factor,
          .residual = *addend,
          .bf16_operands = bf16_operands_allowed(),
      },
      torch_pool());
  count("linear", table.name, algorithm);
  return out;
}

STABLE_TORCH_LIBRARY_IMPL(fxrewrite, CPU, m) { m.impl("linear", TORCH_BOX(&linear)); }

}  // namespace

}  // namespace fx
