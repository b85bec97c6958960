// Sums in rank order, shared by the paths of host ranks so that all give the same bits.
#pragma once
#include <cstddef>
#include <cstdint>

#include "topology/communicators/communicator.hpp"

namespace tessera {

/// out[i] = sources[0][i] + sources[1][i] + ... in this order, i < count; bf16 and f16 are summed in fp32 and rounded once. With
/// `accumulate` the previous out[i] is added last. `out` may be one of the sources. f32, bf16, f16 and i64; the maximum keeps NaN.
void reduce_in_order(void* out, const void* const* sources, int source_count, std::int64_t count, DType dtype, Reduction reduction,
                     bool accumulate);

// The same in parts, for sums that travel: before the first and after the last source they are fp32 where elements are bf16 or f16.

inline std::size_t size_of_sum(DType dtype) { return size_of(is_float(dtype) ? DType::f32 : dtype); }
/// sums[i] = before[i] + sources[0][i] + ... in this order; without `before` it begins with the first source. `sums` may be `before`.
void continue_in_order(void* sums, const void* before, const void* const* sources, int source_count, std::int64_t count, DType dtype,
                       Reduction reduction);
/// out[i] = sums[i], to which with `accumulate` the previous out[i] is added, rounded once.
void end_in_order(void* out, const void* sums, std::int64_t count, DType dtype, Reduction reduction, bool accumulate);

/// Throws Error(internal) for a type that no reduction takes.
void require_reducible(DType dtype);

}  // namespace tessera
