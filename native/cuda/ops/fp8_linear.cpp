// `fxrewrite::fp8_linear` for CUDA: which inputs the kernels take, and their arguments.

#include "fp8_linear.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <array>
#include <optional>
#include <vector>

#include "../registration.h"
#include "../tensors.h"
#include "ops/rows.h"
#include "reference.h"

namespace fx {

namespace {

using torch::stable::Tensor;

bool aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; }

bool floating(Dtype dtype) {
  return dtype == Dtype::float64 || dtype == Dtype::float32 || dtype == Dtype::float16 || dtype == Dtype::bfloat16;
}

// One for the tensor, or one for each output channel.
bool takes_scale(const TensorView& scale, const TensorView& weight) {
  const bool one = scale.dim <= 2 && scale.numel() == 1;
  return floating(scale.dtype) && (one || (scale.dim == 2 && scale.size(0) == weight.size(0) && scale.size(1) == 1));
}

bool takes(const TensorView& x, const TensorView& weight, const std::optional<TensorView>& scale,
           const std::optional<TensorView>& bias) {
  return x.dtype == Dtype::bfloat16 && (weight.dtype == Dtype::float8_e4m3fn || weight.dtype == Dtype::float8_e5m2) &&
         x.dim >= 1 && weight.dim == 2 && x.size(-1) == weight.size(1) && x.numel() != 0 && weight.numel() != 0 &&
         weight.stride(1) == 1 && weight.size(1) % fp8_together == 0 && weight.stride(0) % fp8_together == 0 &&
         aligned(weight.data) && (!scale || takes_scale(*scale, weight)) &&
         (!bias || (bias->dtype == x.dtype && bias->dim == 1 && bias->size(0) == weight.size(0)));
}

// The framework's GEMM, of the weight decoded once.
Tensor decode_and_multiply(Fp8LinearArgs args, const Tensor& x, const std::optional<Tensor>& bias, int32_t device) {
  const int64_t sizes[] = {args.n, args.k}, strides[] = {args.k, 1};
  const Tensor decoded = new_tensor(x, Dtype::bfloat16, sizes, strides, 2);
  args.out = decoded.data_ptr();
  run_fp8_decode(args, device_properties(device).multiprocessors, current_stream(device));
  std::array<StableIValue, 3> stack{torch::stable::detail::from(x), torch::stable::detail::from(decoded),
                                    torch::stable::detail::from(bias)};
  call_dispatcher("aten::linear", stack.data());
  return torch::stable::detail::to<Tensor>(stack[0]);
}

Tensor fp8_linear(Tensor x, Tensor weight, std::optional<Tensor> scale, std::optional<Tensor> bias,
                  std::optional<std::vector<int64_t>> block) {
  const TensorView w = view(weight);
  TensorView in = view(x);
  std::optional<TensorView> s, b;
  if (scale) s = view(*scale);
  if (bias) b = view(*bias);
  const int32_t device = common_device({&x, &weight, scale ? &*scale : nullptr, bias ? &*bias : nullptr});
  if (device < 0 || block || !takes(in, w, s, b) || device_properties(device).capability < least_capability)
    return call_reference("fp8_linear", "fxrewrite::fp8_linear_reference", x, weight, scale, bias, block);

  Fp8LinearArgs args{};
  args.weight = w.data, args.weight_stride = w.stride(0);
  args.n = w.size(0), args.k = w.size(1), args.m = in.numel() / args.k;
  args.e5m2 = w.dtype == Dtype::float8_e5m2;
  if (s) args.scale = s->data, args.scale_dtype = s->dtype, args.scale_stride = s->numel() == 1 ? 0 : s->stride(0);
  const OnDevice guard(device);
  if (args.m > fp8_most_rows) {
    count("fp8_linear", "cuda", "decode");
    return decode_and_multiply(args, x, bias, device);
  }

  Rows rows = rows_of(in);
  if (!rows.usable || rows.stride % 8 != 0 || !aligned(in.data)) {
    x = torch::stable::contiguous(x);
    if (!aligned(x.data_ptr())) x = torch::stable::clone(x);
    in = view(x);
    rows = rows_of(in);
  }
  args.x = in.data, args.x_stride = rows.stride;
  if (b) args.bias = b->data, args.bias_stride = b->stride(0);
  std::vector<int64_t> sizes(in.sizes, in.sizes + in.dim), strides(static_cast<size_t>(in.dim));
  sizes.back() = args.n;
  row_major(strides, sizes);
  const Tensor out = new_tensor(x, Dtype::bfloat16, sizes.data(), strides.data(), in.dim);
  args.out = out.data_ptr();
  run_fp8_linear(args, device_properties(device).multiprocessors, current_stream(device));
  count("fp8_linear", "cuda", "stream");
  return out;
}

FX_CUDA_LIBRARY_IMPL(m) { m.impl("fp8_linear", TORCH_BOX(&fp8_linear)); }

}  // namespace

}  // namespace fx
