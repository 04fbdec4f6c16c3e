// Intel AMX with BF16 products: Sapphire Rapids and newer. bf16 matrices multiply on tiles (see amx_tiles.h);
// everything else, fp32 among it, is as with AVX512-BF16, which these machines have too.
#include "../kernels.inl.h"
#include "amx_tiles.h"
#include "avx512_bf16.h"

namespace fx {

namespace {

struct AmxBf16 : Avx512Bf16 {
  template <class T>
  static constexpr bool tiles = false;
  using Session = TileSession;

  template <class Sink>
  static FX_MEMBER void multiply_panel(const bf16* a, int64_t lda, const uint32_t* panel, int64_t width, int64_t m,
                                       int64_t columns, int64_t k, const Sink& sink) {
    multiply_panel_by_tiles<AmxBf16>(a, lda, panel, width, m, columns, k, sink);
  }
  static FX_MEMBER int64_t block_depth(int64_t k) { return tile_depth(k); }
  static FX_MEMBER void multiply_block(float* c, int64_t ldc, bool accumulate, const bf16* a, int64_t lda,
                                       const uint32_t* panel, int64_t width, int64_t rows, int64_t columns, int64_t k) {
    multiply_block_by_tiles(c, ldc, accumulate, a, lda, panel, width, rows, columns, k);
  }
};
template <>
constexpr bool AmxBf16::tiles<bf16> = true;

const char* linear(const LinearArgs& args, const Parallel& pool) {
  if (args.dtype == Dtype::bfloat16) return linear_of<AmxBf16, bf16>(args, pool);
  if (rounds_operands<AmxBf16>(args)) return linear_of_rounded<AmxBf16>(args, pool);
  return avx512_bf16_kernels.linear(args, pool);
}

const char* fp8_linear(const Fp8LinearArgs& args, const Parallel& pool) {
  if (args.dtype == Dtype::bfloat16) return fp8_linear_of_format<AmxBf16, bf16>(args, pool);
  return avx512_bf16_kernels.fp8_linear(args, pool);
}

const char* sdpa(const SdpaArgs& args, const Parallel& pool) {
  if (args.dtype == Dtype::bfloat16) return sdpa_of<AmxBf16, bf16, bf16>(args, pool);
  return avx512_bf16_kernels.sdpa(args, pool);
}

}  // namespace

constinit const KernelTable amx_bf16_kernels = {"amx_bf16", linear, fp8_linear, sdpa,
                                                relu_linear_attention_kernel<AmxBf16>};

}  // namespace fx
