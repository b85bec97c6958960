// A checkpoint of a deck's model written by any number of ranks, without ranks: every value is known.
#pragma once
#include <limits>
#include <string>

#include "base/hash.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "schedule/build/request.hpp"
#include "zero/partition.hpp"

namespace tessera::test {

/// What the values of a tensor in a group are made from.
inline std::uint64_t key_of(const std::string& group, const std::string& tensor) { return hash_text(group + tensor).low; }

/// Element i of such a tensor.
inline float value_at(std::uint64_t key, std::int64_t i) {
  const std::uint64_t x = (key + static_cast<std::uint64_t>(i)) * 0x9e3779b97f4a7c15u;
  return (static_cast<float>(x >> 40) - 8388608.0f) * 0x1p-23f;
}
inline float value_at(const std::string& group, const std::string& tensor, std::int64_t i) { return value_at(key_of(group, tensor), i); }

/// Writes root/step-N and returns its folder. Every value of the tensor `of_nan` is NaN.
inline std::string write_sharded(const std::string& root, const Deck& deck, int shards, std::int64_t step = 5,
                                 const std::string& of_nan = "") {
  const Layout layout = layout_for(deck, shards);
  io::CheckpointLayout saved{.units = {}, .tensors = {}, .groups = {"master", "adam_m", "adam_v"}, .shards = shards};
  for (const Unit& unit : layout.units) {
    for (const Slot& slot : unit.slots) {
      const Parameter& p = layout.table[static_cast<std::size_t>(slot.parameter)];
      saved.tensors.push_back({p.name, p.shape, static_cast<int>(saved.units.size()), slot.offset});
    }
    saved.units.push_back({unit.name, unit.elements});
  }
  io::begin_checkpoint(root, step);
  for (int shard = 0; shard < shards; ++shard) {
    std::vector<std::vector<float>> values;
    std::vector<io::ShardSlice> slices;
    for (int group = 0; group < 3; ++group)
      for (int u = 0; u < static_cast<int>(layout.units.size()); ++u) {
        const Range mine = owned_range(layout, u, shard);
        auto& out = values.emplace_back(static_cast<std::size_t>(mine.size()), 0.0f);
        for (const Piece& piece : pieces_in(layout.units[static_cast<std::size_t>(u)], mine.begin, mine.end)) {
          const std::string& tensor = layout.table[static_cast<std::size_t>(piece.parameter)].name;
          const std::uint64_t key = key_of(saved.groups[static_cast<std::size_t>(group)], tensor);
          for (std::int64_t i = 0; i < piece.elements; ++i)
            out[static_cast<std::size_t>(piece.unit_offset - mine.begin + i)] =
                tensor == of_nan ? std::numeric_limits<float>::quiet_NaN() : value_at(key, piece.tensor_offset + i);
        }
        slices.push_back({group, u, std::span<const float>()});
      }
    for (std::size_t i = 0; i < slices.size(); ++i) slices[i].data = std::span<const float>(values[i]);
    io::write_shard(root, step, saved, shard, slices);
  }
  io::write_index(
      root, saved,
      {.step = step, .sample_cursor = 0, .seed = 1, .deck = print_deck(deck), .identity = deck_identity(deck).hex(), .version = "test"});
  io::commit_checkpoint(root, step, 0);
  return root + "/" + io::checkpoint_name(step);
}

}  // namespace tessera::test
