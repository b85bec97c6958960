// A digest of a run's state that does not depend on its layout: each element counts with its tensor, its place there and its bits, and the
// sums of ranks are added. Beside checksums of files, which say that what was written is what is read, it says that two states are the
// same.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/checkpoint/saved_state.hpp"

namespace tessera::io {

/// Modulo 2^64 each.
using StateSum = std::array<std::uint64_t, 2>;

/// A slice of a rank, and the first element of its unit that it has.
struct PlacedSlice {
  const ShardSlice* slice = nullptr;
  std::int64_t begin = 0;
};
std::vector<PlacedSlice> place_slices(const CheckpointLayout& layout, int rank, int ranks, std::span<const ShardSlice> slices);

/// Of what this rank would save: tensors of each group. What ranks keep of their own, and of no tensor, does not count.
StateSum sum_of_state(const CheckpointLayout& layout, int rank, int ranks, std::span<const ShardSlice> slices);

}  // namespace tessera::io
