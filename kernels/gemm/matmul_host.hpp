// One oneDNN matmul: made at its first use on a thread, kept for the thread's life. What gemm is built from.
#pragma once
#include <cstddef>

#include "base/types.hpp"

namespace tessera::kernels {

/// All that a primitive depends on, besides pointers. Strides are those of the stored (untransposed) rows, in elements.
struct Matmul {
  std::int64_t M = 0, N = 0, K = 0;
  std::int64_t a_stride = 0, b_stride = 0, c_stride = 0;
  bool a_transposed = false, b_transposed = false, accumulate = false, bias = false, b_packed = false;
  DType in = DType::f32, out = DType::f32;
  float scale = 1;
  friend bool operator==(const Matmul&, const Matmul&) = default;
};

struct MatmulOperands {
  void* c = nullptr;
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;
  void* scratch = nullptr;  ///< matmul_scratch_bytes, 64-byte aligned
};

/// Runs on `threads` OpenMP threads; 1 inside a parallel region whatever is asked.
void run_matmul(const Matmul&, const MatmulOperands&, int threads);
std::size_t matmul_scratch_bytes(const Matmul&, int threads);
/// Bytes of b in oneDNN's own layout, which depends on N, K and the type alone.
std::size_t matmul_packed_bytes(const Matmul&);
/// Reorders plain b into that layout.
void matmul_pack(const Matmul&, void* packed, const void* b, int threads);
/// Whether the processor has instructions for oneDNN's bf16 product.
bool has_bf16_product();
/// Whether oneDNN multiplies bf16 faster than fp32 on this processor: see gemm_host.cpp.
bool bf16_is_faster();
/// Whether products of the type are computed on copies in fp32.
bool is_widened(DType);

}  // namespace tessera::kernels
