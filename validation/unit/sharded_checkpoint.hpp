// A checkpoint of a deck's model written by any number of ranks that cut its tensors, without ranks: every value is known.
#pragma once
#include <limits>
#include <string>

#include "base/hash.hpp"
#include "io/checkpoint/format.hpp"
#include "schedule/build/request.hpp"
#include "train/engine/saved_layout.hpp"
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

/// What rank `rank` of `ranks` keeps of each tensor: a part of its tp_dim, or all where it has none.
inline std::vector<Box> cut_boxes(const std::vector<Parameter>& table, int rank, int ranks) {
  std::vector<Box> boxes;
  for (const Parameter& p : table) {
    boxes.push_back(whole_box(p.shape));
    if (p.tp_dim < 0) continue;
    const auto d = static_cast<std::size_t>(p.tp_dim);
    boxes.back().start[d] = p.shape.dims[d] * rank / ranks;
    boxes.back().count[d] = p.shape.dims[d] * (rank + 1) / ranks - boxes.back().start[d];
  }
  return boxes;
}

/// Layouts of `cuts` ranks that keep such parts, of which each is shared by `shards` ranks.
inline std::vector<Layout> cut_layouts(const Deck& deck, int shards, int cuts) {
  const bool persistent = deck.zero.stage == 3 && shards > 1;
  std::vector<Layout> layouts;
  for (int rank = 0; rank < cuts; ++rank) {
    const auto table = parameter_table(deck.model);
    layouts.push_back(make_layout(table, shards, persistent ? deck.zero.param_persistence_threshold : 0, cut_boxes(table, rank, cuts)));
  }
  return layouts;
}

/// All units of a layout on the same shards.
inline Holding holding_of(const Layout& layout, const std::vector<int>& shards) {
  return {&layout, std::vector<std::vector<int>>(layout.units.size(), shards)};
}

/// How the state of those layouts lies in a checkpoint: shard r * cuts + c is of rank r of those that share layout c.
inline SavedLayout saved_layout_of(const std::vector<Layout>& layouts) {
  const int cuts = static_cast<int>(layouts.size()), shards = layouts.front().shards;
  std::vector<Holding> holdings;
  for (int c = 0; c < cuts; ++c) {
    std::vector<int> held;
    for (int rank = 0; rank < shards; ++rank) held.push_back(rank * cuts + c);
    holdings.push_back(holding_of(layouts[static_cast<std::size_t>(c)], held));
  }
  const std::string_view groups[] = {"master", "adam_m", "adam_v"};
  return saved_layout(holdings, groups, shards * cuts);
}

/// Writes root/step-N as cuts * shards ranks would and returns its folder. `files`: the file of
/// each shard, where they share some.
inline std::string write_sharded(const std::string& root, const Deck& deck, int shards, std::int64_t step = 5, int cuts = 1,
                                 const std::vector<int>& files = {}) {
  const std::vector<Layout> layouts = cut_layouts(deck, shards, cuts);
  SavedLayout of_layouts = saved_layout_of(layouts);
  io::CheckpointLayout& saved = of_layouts.checkpoint;
  const auto& units = of_layouts.units;
  saved.files = files;
  io::begin_checkpoint(root, step);
  for (int shard = 0; shard < shards * cuts; ++shard) {
    const Layout& layout = layouts[static_cast<std::size_t>(shard % cuts)];
    std::vector<std::vector<float>> values;
    std::vector<io::ShardSlice> slices;
    for (int group = 0; group < 3; ++group)
      for (int u = 0; u < static_cast<int>(layout.units.size()); ++u) {
        const int number = units[static_cast<std::size_t>(shard % cuts)][static_cast<std::size_t>(u)];
        if (number < 0) continue;
        const Unit& unit = layout.units[static_cast<std::size_t>(u)];
        const Range mine = owned_range(layout, u, shard / cuts);
        auto& out = values.emplace_back(static_cast<std::size_t>(mine.size()), 0.0f);
        for (const Piece& piece : pieces_in(unit, mine.begin, mine.end)) {
          const std::string& tensor = layout.table[static_cast<std::size_t>(piece.parameter)].name;
          const std::uint64_t key = key_of(saved.groups[static_cast<std::size_t>(group)], tensor);
          for_each_run(layout, unit, piece, [&](const NaturalRun& run) {
            for (std::int64_t i = 0; i < run.elements; ++i)
              out[static_cast<std::size_t>(run.unit_offset - mine.begin + i)] = value_at(key, run.tensor_offset + i);
          });
        }
        slices.push_back({group, number, std::span<const float>()});
      }
    for (std::size_t i = 0; i < slices.size(); ++i) slices[i].data = std::span<const float>(values[i]);
    io::write_shard(root, step, saved, shard, slices);
  }
  for (int file = 0; file < io::file_count(saved); ++file) io::seal_file(root, step, saved, file);
  io::write_index(
      root, saved,
      {.step = step, .sample_cursor = 0, .seed = 1, .deck = print_deck(deck), .identity = deck_identity(deck).hex(), .version = "test"});
  io::commit_checkpoint(root, step, {});
  return root + "/" + io::checkpoint_name(step);
}

}  // namespace tessera::test
