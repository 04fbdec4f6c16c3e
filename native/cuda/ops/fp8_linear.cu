// A linear layer with an FP8 weight and few rows of bfloat16: one stream over the weight, a byte an element.
//
// The weight is the left operand of the tensor cores' products, x the right one: y^T = W x^T, eight rows of x at a
// time. A lane decodes 16 codes of a weight row from one load straight into fragments. Which k stands where in a
// fragment is free, as long as both operands agree: lane l % 4 has 16 neighbouring k of 64, four to each product.

#include "../fp8.h"
#include "fp8_linear.h"

namespace fx {

namespace {

constexpr int threads = 256, warps = threads / 32;
constexpr int step_k = 64;  // of a warp at a time

struct Work {
  Fp8LinearArgs args;
  int row_warps;  // warps of a block that have rows of their own; the others share rows and divide k
};

// Beyond this, scale times weight may overflow bfloat16, as the weight decoded and scaled would.
FX_DEVICE bool scales_apart(float scale, bool e5m2) {
  return fabsf(scale) * (e5m2 ? 57344.0f : 448.0f) <= 3.38e38f;  // false for NaN
}

FX_DEVICE void rescale(uint32_t (&pairs)[8], float scale) {
  FX_UNROLL
  for (int i = 0; i < 8; ++i)
    pairs[i] = pack_bf16(float_of_bf16(pairs[i] & 0xffffu) * scale, float_of_bf16(pairs[i] >> 16) * scale);
}

FX_DEVICE float scale_of(const Fp8LinearArgs& args, int64_t row) {
  return args.scale == nullptr || row >= args.n ? 1.0f
                                                : load_scale(args.scale, args.scale_dtype, row * args.scale_stride);
}

// Tokens: eights of rows of x. Tiles: sixteens of rows of the weight, of a warp.
template <int Tokens, int Tiles>
struct Size {
  static constexpr int ahead = Tiles == 1 ? 4 : 2;  // steps whose weights are loaded together
  static constexpr int columns = 8 * Tokens;        // rows of x
  FX_BOTH static constexpr int bytes() { return 4 * warps * 16 * Tiles * columns; }
};

// Blocks: rows of the weight; rows of x.
template <int Tokens, int Tiles>
FX_KERNEL(threads, (Tokens <= 2 ? 2 : 1))
multiply(FX_ARGUMENT(Work) work) {
  using S = Size<Tokens, Tiles>;
  const Fp8LinearArgs& args = work.args;
  const int lane = lane_index(), group = lane / 4, member = lane % 4;
  const int row_warp = warp_index() % work.row_warps, part = warp_index() / work.row_warps;
  const int parts = warps / work.row_warps;
  const int64_t first_row = (static_cast<int64_t>(block_x()) * work.row_warps + row_warp) * 16 * Tiles;
  const int64_t first_column = static_cast<int64_t>(block_y()) * S::columns;
  const Fp8Format format = fp8_format(args.e5m2);
  const auto* weight = static_cast<const uint8_t*>(args.weight);
  const auto* x = static_cast<const uint16_t*>(args.x);

  // Rows whose scale cannot wait until the sum is there.
  float early[2 * Tiles];
  FX_UNROLL
  for (int r = 0; r < 2 * Tiles; ++r) {
    const float scale = scale_of(args, first_row + group + 8 * r);
    early[r] = scales_apart(scale, args.e5m2) ? 1.0f : scale;
  }

  float sums[Tiles][Tokens][4] = {};
  const int64_t stride = static_cast<int64_t>(parts) * step_k;
  const auto load = [&](Vec16(&codes)[S::ahead][2 * Tiles], int64_t k0) {
    FX_UNROLL
    for (int s = 0; s < S::ahead; ++s) FX_UNROLL
    for (int r = 0; r < 2 * Tiles; ++r) {
      const int64_t row = first_row + group + 8 * r, k = k0 + s * stride + 16 * member;
      codes[s][r] = row < args.n && k < args.k ? load_streamed(weight + row * args.weight_stride + k) : Vec16{};
    }
  };

  Vec16 next[S::ahead][2 * Tiles];
  const int64_t start = static_cast<int64_t>(part) * step_k;
  load(next, start);
  FX_ROLLED
  for (int64_t k0 = start; k0 < args.k; k0 += S::ahead * stride) {
    Vec16 codes[S::ahead][2 * Tiles];
    FX_UNROLL
    for (int s = 0; s < S::ahead; ++s) FX_UNROLL
    for (int r = 0; r < 2 * Tiles; ++r) codes[s][r] = next[s][r];
    load(next, k0 + S::ahead * stride);
    FX_UNROLL
    for (int s = 0; s < S::ahead; ++s) {
      uint32_t a[2 * Tiles][8];
      FX_UNROLL
      for (int r = 0; r < 2 * Tiles; ++r) {
        decode(a[r], codes[s][r], format, args.e5m2);
        if (early[r] != 1.0f) rescale(a[r], early[r]);
      }
      const int64_t k = k0 + s * stride + 16 * member;
      FX_UNROLL
      for (int t = 0; t < Tokens; ++t) {
        const int64_t column = first_column + 8 * t + group;
        Vec16 b[2] = {};
        if (column < args.m && k < args.k) {
          const uint16_t* from = x + column * args.x_stride + k;
          b[0] = load_global(from), b[1] = load_global(from + 8);
        }
        FX_UNROLL
        for (int tile = 0; tile < Tiles; ++tile) FX_UNROLL
        for (int i = 0; i < 4; ++i) {
          const uint32_t fragment[4] = {a[2 * tile][2 * i], a[2 * tile + 1][2 * i], a[2 * tile][2 * i + 1],
                                        a[2 * tile + 1][2 * i + 1]};
          multiply_add(sums[tile][t], fragment, b[i / 2].word[2 * (i % 2)], b[i / 2].word[2 * (i % 2) + 1]);
        }
      }
    }
  }

  // Parts of k are added up through shared memory: [parts, columns, rows of the block].
  auto* shared = reinterpret_cast<float*>(shared_memory());
  const int rows = work.row_warps * 16 * Tiles;
  FX_UNROLL
  for (int tile = 0; tile < Tiles; ++tile) FX_UNROLL
  for (int t = 0; t < Tokens; ++t) FX_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int row = row_warp * 16 * Tiles + 16 * tile + group + i / 2 * 8, column = 8 * t + 2 * member + i % 2;
    shared[(part * S::columns + column) * rows + row] = sums[tile][t][i];
  }
  barrier();
  const int64_t block_row = static_cast<int64_t>(block_x()) * rows;
  for (int at = thread_index(); at < rows * S::columns; at += threads) {
    const int64_t row = block_row + at % rows, column = first_column + at / rows;
    if (row >= args.n || column >= args.m) continue;
    float sum = 0;
    for (int p = 0; p < parts; ++p) sum += shared[p * S::columns * rows + at];
    const float scale = scale_of(args, row);
    if (scales_apart(scale, args.e5m2)) sum *= scale;
    if (args.bias != nullptr) sum += float_of_bf16(static_cast<const uint16_t*>(args.bias)[row * args.bias_stride]);
    static_cast<uint16_t*>(args.out)[column * args.n + row] = static_cast<uint16_t>(pack_bf16(sum, 0.0f));
  }
}

// Blocks: as many as run at once; sixteens of the weight, one a thread.
FX_KERNEL(threads, 4)
decode_all(FX_ARGUMENT(Work) work) {
  const Fp8LinearArgs& args = work.args;
  const Fp8Format format = fp8_format(args.e5m2);
  const int64_t per_row = args.k / 16, count = args.n * per_row, blocks = work.row_warps;
  for (int64_t i = static_cast<int64_t>(block_x()) * threads + thread_index(); i < count; i += blocks * threads) {
    const int64_t row = i / per_row, k = i % per_row * 16;
    const Vec16 codes = load_streamed(static_cast<const uint8_t*>(args.weight) + row * args.weight_stride + k);
    uint32_t pairs[8];
    decode(pairs, codes, format, args.e5m2);
    if (args.scale != nullptr) rescale(pairs, scale_of(args, row));
    uint16_t* to = static_cast<uint16_t*>(args.out) + row * args.k + k;
    store_global(to, {{pairs[0], pairs[1], pairs[2], pairs[3]}});
    store_global(to + 8, {{pairs[4], pairs[5], pairs[6], pairs[7]}});
  }
}

template <int Tokens, int Tiles>
void launch_size(Work work, int multiprocessors, Stream stream) {
  using S = Size<Tokens, Tiles>;
  // More rows of the weight to a block share what is read of x, as long as there are blocks for the whole device.
  work.row_warps = 4;
  while (work.row_warps > 1 && divide_up(work.args.n, work.row_warps * 16 * Tiles) < 2 * multiprocessors)
    work.row_warps /= 2;
  launch(multiply<Tokens, Tiles>,
         {divide_up(work.args.n, work.row_warps * 16 * Tiles), divide_up(work.args.m, S::columns)}, threads,
         static_cast<size_t>(S::bytes()), stream, work);
}

}  // namespace

void run_fp8_linear(const Fp8LinearArgs& args, int multiprocessors, Stream stream) {
  const Work work{args, 1};
  if (args.m <= 8) return launch_size<1, 1>(work, multiprocessors, stream);
  if (args.m <= 16) return launch_size<2, 1>(work, multiprocessors, stream);
  if (args.m <= 32) return launch_size<4, 2>(work, multiprocessors, stream);
  launch_size<8, 2>(work, multiprocessors, stream);
}

void run_fp8_decode(const Fp8LinearArgs& args, int multiprocessors, Stream stream) {
  const int64_t blocks = smaller(divide_up(args.n * args.k / 16, threads), 8 * multiprocessors);
  launch(decode_all, {blocks}, threads, 0, stream, Work{args, static_cast<int>(blocks)});
}

}  // namespace fx
