// Every instruction beyond plain C++ that the kernels use, each behind a function, and the launch of a kernel.
//
// Without nvcc the same names come from native/testing/cuda_shim, which runs the same sources on a CPU.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fx {

// What one thread loads or stores at once: addresses are multiples of 16 bytes.
struct alignas(16) Vec16 {
  uint32_t word[4];
};

struct Grid {
  int64_t x, y = 1, z = 1;
};

using Stream = void*;  // a cudaStream_t

}  // namespace fx

#if defined(FXREWRITE_CUDA_SHIM)
#include "cuda_shim.h"
#elif defined(__CUDACC__)

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#define FX_DEVICE __device__ __forceinline__
// Not inlined.
#define FX_CALLED __device__ __noinline__
#define FX_BOTH __host__ __device__ __forceinline__
// `threads` of a block; blocks of one multiprocessor at a time, which bounds the registers of a thread.
#define FX_KERNEL(threads, blocks) __global__ void __launch_bounds__(threads, blocks)
// A kernel's one parameter: read where it lies, never copied, even where its address is passed on.
#define FX_ARGUMENT(type) const __grid_constant__ type
#define FX_UNROLL _Pragma("unroll")
#define FX_ROLLED _Pragma("unroll 1")
#define FX_PRAGMA(text) _Pragma(#text)
#define FX_UNROLL_BY(count) FX_PRAGMA(unroll count)

namespace fx {

FX_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
FX_DEVICE int lane_index() { return static_cast<int>(threadIdx.x) % 32; }
FX_DEVICE int warp_index() { return static_cast<int>(threadIdx.x) / 32; }
FX_DEVICE int block_x() { return static_cast<int>(blockIdx.x); }
FX_DEVICE int block_y() { return static_cast<int>(blockIdx.y); }
FX_DEVICE int block_z() { return static_cast<int>(blockIdx.z); }

// All threads of the block get here before any goes on.
FX_DEVICE void barrier() { __syncthreads(); }

// The block's shared memory, as much as the launch asked for.
FX_DEVICE char* shared_memory() {
  extern __shared__ __align__(16) char bytes[];
  return bytes;
}

FX_DEVICE float float_of_bits(uint32_t bits) { return __uint_as_float(bits); }
FX_DEVICE uint32_t bits_of_float(float x) { return __float_as_uint(x); }

// Reads memory that nothing writes during the kernel.
FX_DEVICE Vec16 load_global(const void* from) {
  const uint4 v = __ldg(static_cast<const uint4*>(from));
  return {{v.x, v.y, v.z, v.w}};
}

// Two floats at once; their address is a multiple of 8 bytes.
FX_DEVICE void load_two(float (&out)[2], const float* from) {
  const float2 v = __ldg(reinterpret_cast<const float2*>(from));
  out[0] = v.x, out[1] = v.y;
}

// As load_global, for what is read once: it need not stay in the first cache.
FX_DEVICE Vec16 load_streamed(const void* from) {
  Vec16 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
               : "l"(from));
  return v;
}

// Starts a copy of the first `bytes` of 16 from global to shared memory; the rest becomes zero.
FX_DEVICE void copy_async(void* to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(from), "r"(bytes)
               : "memory");
}

// Makes the copies that this thread started since the last call a group.
FX_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" : : : "memory"); }

// Waits for all groups of this thread but the `Pending` latest.
template <int Pending>
FX_DEVICE void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" : : "n"(Pending) : "memory");
}

FX_DEVICE void store_global(void* to, const Vec16& v) {
  *static_cast<uint4*>(to) = make_uint4(v.word[0], v.word[1], v.word[2], v.word[3]);
}

FX_DEVICE Vec16 load_shared(const void* from) {
  const uint4 v = *static_cast<const uint4*>(from);
  return {{v.x, v.y, v.z, v.w}};
}

FX_DEVICE void store_shared(void* to, const Vec16& v) {
  *static_cast<uint4*>(to) = make_uint4(v.word[0], v.word[1], v.word[2], v.word[3]);
}

// Two floats rounded to bfloat16 (to nearest, ties to even), `low` in the low half.
FX_DEVICE uint32_t pack_bf16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// Of two bfloat16 each: the larger of it and zero; NaN stays NaN.
FX_DEVICE uint32_t relu_bf16(uint32_t pair) {
  uint32_t out;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(pair), "r"(0u));
  return out;
}

// Products of two bfloat16 each, rounded to bfloat16.
FX_DEVICE uint32_t multiply_bf16(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(0x80008000u));
  return out;
}

// Bytes of the eight of (low, high), chosen by the nibbles of `selector`.
FX_DEVICE uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  return __byte_perm(low, high, selector);
}

// Four 8x8 matrices of 16-bit elements from shared memory. Lane l names row l % 8 of matrix l / 8, and gets of
// matrix i, into out[i], the elements (l / 4, 2 (l % 4)) and the one to its right.
FX_DEVICE void load_matrices(uint32_t (&out)[4], const uint16_t* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

// The same of the transposed matrices.
FX_DEVICE void load_matrices_transposed(uint32_t (&out)[4], const uint16_t* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

// c[16, 8] += a[16, 16] · b[16, 8], bfloat16 operands, fp32 sums, in the fragments of PTX's mma.m16n8k16.
FX_DEVICE void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess)
    throw std::runtime_error(std::string("fxrewrite: ") + what + ": " + cudaGetErrorString(error));
}

// Runs `kernel(args)`; throws std::runtime_error where CUDA refuses the launch.
template <class Args>
void launch(void (*kernel)(Args), Grid grid, int threads, size_t shared_bytes, Stream stream, const Args& args) {
  constexpr size_t without_asking = 48 << 10;
  if (shared_bytes > without_asking)
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes)),
          "shared memory of a kernel");
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y), static_cast<unsigned>(grid.z));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  check(cudaLaunchKernelEx(&config, kernel, args), "launch of a kernel");
}

}  // namespace fx

#endif
