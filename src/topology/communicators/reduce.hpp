// Sums in rank order, shared by the MPI and the shared-memory path so that both give the same bits.
#pragma once
#include <cstddef>
#include <cstdint>

#include "topology/communicators/communicator.hpp"

namespace tessera {

/// out[i] = sources[0][i] + sources[1][i] + ... in this order, i < count; bf16 is summed in fp32 and rounded once. With `accumulate` the
/// previous out[i] is added last. `out` may be one of the sources.
/// f32, bf16 and i64; the maximum keeps NaN.
void reduce_in_order(void* out, const void* const* sources, int source_count, std::int64_t count, DType dtype, Reduction reduction,
                     bool accumulate);

/// Throws Error(internal) for a type that no reduction takes.
void require_reducible(DType dtype);

}  // namespace tessera
