// A small model for checkpoint tests: uneven units, tensors of every rank, gaps between tensors, one unit larger than a hash block.
#pragma once
#include <fmt/ranges.h>

#include <random>
#include <set>

#include "../scratch.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/checkpoint/format.hpp"
#include "io/checkpoint/survey.hpp"

namespace tessera::io::test {
using namespace tessera::test;

inline std::vector<float> random_values(std::int64_t n, std::uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<float> v(static_cast<std::size_t>(n));
  for (auto& x : v) x = static_cast<float>(engine()) * 1e-9f - 2.f;
  return v;
}

struct SmallModel {
  CheckpointLayout layout;
  CheckpointMeta meta;
  std::vector<std::vector<std::vector<float>>> values;  // group, unit: the whole unit

  explicit SmallModel(int shards, std::int64_t step = 1000, std::uint32_t seed = 7) {
    layout.shards = shards;
    layout.groups = {"master", "adam_m"};
    layout.units = {{"embedding", 300007}, {"layers.0", 5003}, {"head", 3}};
    layout.tensors = {{"embedding.weight", {1201, 249}, 0, 16},  {"layers.0.attention.wq", {31, 77}, 1, 0},
                      {"layers.0.conv", {3, 5, 7, 11}, 1, 2400}, {"layers.0.norm", {97}, 1, 4000},
                      {"layers.0.scale", Shape(), 1, 5002},      {"head.bias", {3, 1}, 2, 0}};
    meta = {step, 123456789, 0xfedcba9876543210ull, "[run]\nname = \"tiny\"\n", "00ff", "0.1.0"};
    for (std::size_t g = 0; g < layout.groups.size(); ++g) {
      values.emplace_back();
      for (std::size_t u = 0; u < layout.units.size(); ++u)
        values[g].push_back(random_values(layout.units[u].elements, seed + static_cast<std::uint32_t>(g * 10 + u)));
    }
  }
  /// Of these lines, each begun at the step of its number.
  SmallModel on(const std::vector<std::int64_t>& lines) const {
    SmallModel model = *this;
    model.meta.lineage.clear();
    for (auto number : lines) model.meta.lineage.push_back({number, number, "", ""});
    return model;
  }
  void write_one_shard(const std::string& root, int shard) const {
    std::vector<ShardSlice> slices;
    for (int g = 0; g < static_cast<int>(layout.groups.size()); ++g)
      for (int u = 0; u < static_cast<int>(layout.units.size()); ++u) {
        auto& all = values[static_cast<std::size_t>(g)][static_cast<std::size_t>(u)];
        auto n = static_cast<std::int64_t>(all.size());
        auto begin = slice_begin(n, layout.shards, shard), end = slice_begin(n, layout.shards, shard + 1);
        slices.push_back(
            {g, u, std::span<const float>(all).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin))});
      }
    write_shard(root, meta.step, layout, shard, slices);
  }
  void write_partial(const std::string& root) const {
    begin_checkpoint(root, meta.step);
    for (int s = 0; s < layout.shards; ++s) write_one_shard(root, s);
    write_index(root, layout, meta);
  }
  std::string save(const std::string& root, std::int64_t keep = 0) const {
    write_partial(root);
    commit_checkpoint(root, meta.step, keep);
    return root + "/" + checkpoint_name(meta.step);
  }
  std::vector<float> tensor(std::size_t group, const CheckpointTensor& t) const {
    auto& unit = values[group][static_cast<std::size_t>(t.unit)];
    return {unit.begin() + t.offset, unit.begin() + t.offset + t.shape.elements()};
  }
};

inline std::string head_path(const std::string& root) {
  const Head head = find_head(survey_checkpoints(root));
  return head.entry ? head.entry->path : "";
}
inline std::string head_fault(const std::string& root) { return find_head(survey_checkpoints(root)).fault; }

/// Of a folder, in order.
inline std::string names(const std::string& folder) {
  std::set<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder)) found.insert(entry.path().filename());
  return fmt::format("{}", fmt::join(found, " "));
}

}  // namespace tessera::io::test
