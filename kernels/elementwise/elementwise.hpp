// One-pass helpers: add, copy with cast, fill, normal numbers from a counter.
#pragma once
#include "kernels/context.hpp"

namespace tessera::kernels {

/// out = x + y; out may be x or y. f32, bf16 or f16, the sum in fp32; or i64, which wraps.
TESSERA_OP(add, (const Context& context, void* out, const void* x, const void* y, std::int64_t n, DType dtype),
           (context, out, x, y, n, dtype))

/// out = x + scale y, in fp32 and rounded once; without x (null) scale y.
struct AddScaled {
  void* out = nullptr;      ///< (n); may be x or y
  const void* x = nullptr;  ///< (n), or null
  const void* y = nullptr;  ///< (n)
  float scale = 1;
  std::int64_t n = 0;
  DType dtype = DType::f32;  ///< f32, bf16 or f16
};
TESSERA_OP(add_scaled, (const Context& context, const AddScaled& arguments), (context, arguments))

/// out[i] = part 0 [i] + part 1 [i] + ... in this order, in fp32 and rounded once; with `accumulate` the previous out[i] is added last.
/// What ranks send for a sum of theirs, in the order of the ranks. f32, bf16 or f16.
struct SumInOrder {
  void* out = nullptr;          ///< (n); may be one of the parts
  const void* parts = nullptr;  ///< (P,n)
  std::int64_t P = 0, n = 0;
  DType dtype = DType::f32;
  bool accumulate = false;
};
TESSERA_OP(sum_in_order, (const Context& context, const SumInOrder& arguments), (context, arguments))

/// sum[j] += sum over rows of x(M,N) in a fixed order: the gradient of a bias. x is f32, bf16 or f16.
struct ColumnSums {
  float* sum = nullptr;     ///< (N)
  const void* x = nullptr;  ///< (M,N)
  std::int64_t M = 0, N = 0;
  DType dtype = DType::f32;
};
TESSERA_OP(column_sums, (const Context& context, const ColumnSums& arguments), (context, arguments))
TESSERA_WORKSPACE(column_sums_workspace_bytes, ColumnSums)

/// Copies n elements with conversion between f32, bf16 and f16.
TESSERA_OP(cast, (const Context& context, void* out, DType out_dtype, const void* x, DType x_dtype, std::int64_t n),
           (context, out, out_dtype, x, x_dtype, n))
/// The same bytes elsewhere: memory of either backend, from and to.
TESSERA_OP(copy, (const Context& context, void* to, const void* from, std::size_t bytes), (context, to, from, bytes))
/// Row r of `bytes` bytes from `from + r * from_stride` to `to + r * to_stride` (bytes); rows of `to` must not overlap.
struct CopyRows {
  void* to = nullptr;
  std::int64_t to_stride = 0;
  const void* from = nullptr;
  std::int64_t from_stride = 0, bytes = 0, rows = 0;
};
TESSERA_OP(copy_rows, (const Context& context, const CopyRows& arguments), (context, arguments))
TESSERA_OP(fill_zero, (const Context& context, void* out, std::size_t bytes), (context, out, bytes))

/// out[i] = std * normal(seed, stream, first + i): Philox4x32-10 (Salmon et al., SC 2011) and Box-Muller. Depends on (seed, stream,
/// element) alone.
TESSERA_OP(normal,
           (const Context& context, float* out, std::int64_t n, float std, std::uint64_t seed, std::uint64_t stream, std::uint64_t first),
           (context, out, n, std, seed, stream, first))
/// One uniform 64-bit value for (seed, stream, index).
std::uint64_t counter_random(std::uint64_t seed, std::uint64_t stream, std::uint64_t index);

}  // namespace tessera::kernels
