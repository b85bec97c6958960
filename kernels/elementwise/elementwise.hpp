// One-pass helpers: add, copy with cast, fill, normal numbers from a counter.
#pragma once
#include "kernels/context.hpp"

namespace tessera::kernels {

/// out = x + y; out may be x or y. f32 or bf16, the sum in fp32.
void add(const Context&, void* out, const void* x, const void* y, std::int64_t n, DType);
/// out += x in fp32.
void accumulate(const Context&, float* out, const float* x, std::int64_t n);
/// sum[j] += sum over rows of x(M,N) in a fixed order: the gradient of a bias. x is f32 or bf16.
void column_sums(const Context&, float* sum, const void* x, std::int64_t M, std::int64_t N, DType);
std::size_t column_sums_workspace_bytes(std::int64_t M, std::int64_t N);
/// Copies n elements with conversion between f32 and bf16.
void cast(const Context&, void* out, DType out_dtype, const void* x, DType x_dtype, std::int64_t n);
void fill_zero(const Context&, void* out, std::size_t bytes);

/// out[i] = std * normal(seed, stream, first + i): Philox4x32-10 (Salmon et al., SC 2011) and Box-Muller. Depends on (seed, stream,
/// element) alone.
void normal(const Context&, float* out, std::int64_t n, float std, std::uint64_t seed, std::uint64_t stream, std::uint64_t first);
/// One uniform 64-bit value for (seed, stream, index).
std::uint64_t counter_random(std::uint64_t seed, std::uint64_t stream, std::uint64_t index);

}  // namespace tessera::kernels
