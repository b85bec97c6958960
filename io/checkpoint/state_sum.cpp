#include "io/checkpoint/state_sum.hpp"

#include <algorithm>
#include <bit>

#include "base/check.hpp"
#include "base/hash.hpp"
#include "io/checkpoint/format.hpp"

namespace tessera::io {
namespace {

/// The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): each bit of x moves half of the bits of what is returned.
std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

constexpr std::uint64_t golden = 0x9e3779b97f4a7c15u;

/// Adds `n` values that follow each other in a tensor from its element `first` on.
void add_run(StateSum& sum, const Hash128& tensor, std::int64_t first, std::span<const float> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint64_t bits = std::bit_cast<std::uint32_t>(values[i]), place = static_cast<std::uint64_t>(first) + i;
    const std::uint64_t element = mixed(tensor.low + golden * place) ^ bits * golden;
    sum[0] += mixed(element), sum[1] += mixed(element ^ tensor.high);
  }
}

/// The values of a unit from element `begin` on, as far as they are of a tensor's piece.
void add_piece(StateSum& sum, const Hash128& name, const CheckpointTensor& tensor, const CheckpointPiece& piece, std::int64_t begin,
               std::span<const float> values) {
  const std::int64_t from = std::max(begin, piece.offset),
                     to = std::min(begin + static_cast<std::int64_t>(values.size()), piece.offset + piece.box.elements());
  const std::int64_t row = piece.box.count.empty() ? 1 : piece.box.count.back();
  for (std::int64_t at = from; at < to;) {
    const std::int64_t in_box = at - piece.offset, n = std::min(to - at, row - in_box % row);
    add_run(sum, name, element_around(piece.box, in_box, tensor.shape),
            values.subspan(static_cast<std::size_t>(at - begin), static_cast<std::size_t>(n)));
    at += n;
  }
}

}  // namespace

std::vector<PlacedSlice> place_slices(const CheckpointLayout& layout, int rank, int ranks, std::span<const ShardSlice> slices) {
  std::vector<GroupSlice> held;
  for (int shard = rank; shard < layout.shards; shard += ranks)  // what no step changes is a shard of its own
    for (const GroupSlice& slice : slices_of_groups(layout, shard)) held.push_back(slice);
  std::vector<PlacedSlice> placed;
  for (const ShardSlice& slice : slices) {
    const auto of = std::ranges::find_if(held, [&](const GroupSlice& h) { return h.group == slice.group && h.of.unit == slice.unit; });
    TESSERA_REQUIRE(of != held.end(), "unit {} of group {} is not held by rank {}", slice.unit, slice.group, rank);
    placed.push_back({&slice, of->of.begin});
  }
  return placed;
}

StateSum sum_of_state(const CheckpointLayout& layout, int rank, int ranks, std::span<const ShardSlice> slices) {
  constexpr std::int64_t most = std::int64_t{1} << 20;
  StateSum sum{};
  PageBuffer own;
  for (const auto& [slice, begin] : place_slices(layout, rank, ranks, slices)) {
    const std::string& group = layout.groups[static_cast<std::size_t>(slice->group)];
    struct Place {
      const CheckpointTensor* tensor;
      const CheckpointPiece* piece;
      Hash128 name;
    };
    std::vector<Place> places;
    for (const CheckpointTensor& tensor : layout.tensors)
      for (const CheckpointPiece& piece : tensor.pieces)
        if (piece.unit == slice->unit) places.push_back({&tensor, &piece, hash_text(group + '\n' + tensor.name)});
    for (std::int64_t at = 0; at < slice->data.elements(); at += most) {
      const std::span<const float> values = slice->data.values(at, std::min(most, slice->data.elements() - at), own);
      for (const Place& place : places) add_piece(sum, place.name, *place.tensor, *place.piece, begin + at, values);
    }
  }
  return sum;
}

}  // namespace tessera::io
