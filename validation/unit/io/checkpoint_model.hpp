// A small model for checkpoint tests: uneven units, tensors of every rank, gaps between tensors, one unit larger than a hash block.
#pragma once
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <numeric>
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

/// Where the elements of a box lie in the natural shape: one by one, row-major in the box.
inline std::vector<std::int64_t> natural_offsets(const Shape& shape, const Box& box) {
  std::vector<std::int64_t> offsets;
  for (std::int64_t i = 0; i < box.elements(); ++i) {
    std::int64_t rest = i, offset = 0, stride = 1;
    for (std::size_t d = box.count.size(); d-- > 0;) {
      offset += (box.start[d] + rest % box.count[d]) * stride;
      rest /= box.count[d], stride *= shape.dims[d];
    }
    offsets.push_back(offset);
  }
  return offsets;
}

inline void flip_byte(const std::string& path, std::int64_t at) {
  std::fstream f(path, std::ios::binary | std::ios::in | std::ios::out);
  f.seekg(at);
  char c = static_cast<char>(f.get());
  f.seekp(at);
  f.put(static_cast<char>(c ^ 0x10));
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
    meta.values = {{"applied_updates", true, 997}, {"loss_scale", false, 0x1.8p-3}};
    for (const std::vector<float>& history : {std::vector<float>{0, 0.1f, 3e38f, 0, 1e-40f}, std::vector<float>{}})
      meta.values.push_back({.name = fmt::format("amax.of.{}", history.size()), .numbers = history, .list = true});
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
    for (auto& [g, s] : slices_of_groups(layout, shard)) {
      auto& all = values[static_cast<std::size_t>(g)][static_cast<std::size_t>(s.unit)];
      slices.push_back(
          {g, s.unit, std::span<const float>(all).subspan(static_cast<std::size_t>(s.begin), static_cast<std::size_t>(s.end - s.begin))});
    }
    write_shard(root, meta.step, layout, shard, slices);
  }
  void write_partial(const std::string& root) const {
    begin_checkpoint(root, meta.step);
    for (int s = layout.shards; s-- > 0;) write_one_shard(root, s);
    if (!layout.files.empty())
      for (int f = 0; f < file_count(layout); ++f) seal_file(root, meta.step, layout, f);
    write_index(root, layout, meta);
  }
  std::string save(const std::string& root, std::int64_t keep = 0) const {
    write_partial(root);
    commit_checkpoint(root, meta.step, {.newest = keep});
    return root + "/" + checkpoint_name(meta.step);
  }
  /// In its natural shape.
  std::vector<float> tensor(std::size_t group, const CheckpointTensor& t) const {
    std::vector<float> natural(static_cast<std::size_t>(t.shape.elements()));
    for (auto& piece : t.pieces) {
      auto& unit = values[group][static_cast<std::size_t>(piece.unit)];
      auto from = static_cast<std::size_t>(piece.offset);
      for (auto at : natural_offsets(t.shape, piece.box)) natural[static_cast<std::size_t>(at)] = unit[from++];
    }
    return natural;
  }
};

/// Beside it a matrix that is frozen, in the first group alone, and one of which the second group has a number a row.
struct GroupedModel : SmallModel {
  explicit GroupedModel(int shards) : SmallModel(shards) {
    layout.units.insert(layout.units.end(),
                        {{"layers.0.frozen", 720, {}, {0}}, {"layers.1", 2400, {}, {0}}, {"layers.1.rows", 40, {}, {1}}});
    layout.tensors.insert(layout.tensors.end(),
                          {{"layers.0.frozen.w", {20, 35}, 3, 8}, {"layers.1.wq", {31, 77}, 4, 0}, {"layers.1.wq", {31}, 5, 4}});
    for (std::size_t g = 0; g < 2; ++g)
      for (std::size_t u = 3; u < layout.units.size(); ++u)
        values[g].push_back(random_values(layout.units[u].elements, static_cast<std::uint32_t>(50 + g * 10 + u)));
  }
};

class Draw {
 public:
  explicit Draw(std::uint32_t seed) : engine_(seed) {}
  std::int64_t operator()(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }
  /// A shape's elements in at most 7 boxes, cut along one or two dims: no grid.
  std::vector<Box> boxes(const Shape& shape) {
    std::vector<Box> boxes{whole_box(shape)};
    if (shape.dims.empty()) return boxes;
    const auto rank = static_cast<std::int64_t>(shape.dims.size());
    const std::size_t dims[] = {static_cast<std::size_t>((*this)(0, rank - 1)), static_cast<std::size_t>((*this)(0, rank - 1))};
    for (std::int64_t cuts = (*this)(0, 6); cuts > 0; --cuts) {
      Box& box = boxes[static_cast<std::size_t>((*this)(0, std::ssize(boxes) - 1))];
      const std::size_t d = dims[(*this)(0, 1)];
      if (box.count[d] < 2) continue;
      Box rest = box;
      box.count[d] = (*this)(1, box.count[d] - 1);
      rest.start[d] += box.count[d], rest.count[d] -= box.count[d];
      boxes.push_back(rest);
    }
    std::shuffle(boxes.begin(), boxes.end(), engine_);
    return boxes;
  }
  /// Some shards in any order; often all.
  std::vector<int> holders(int shards) {
    std::vector<int> all(static_cast<std::size_t>(shards));
    std::iota(all.begin(), all.end(), 0);
    if ((*this)(0, 3) == 0) return {};
    std::shuffle(all.begin(), all.end(), engine_);
    all.resize(static_cast<std::size_t>((*this)(1, shards)));
    return all;
  }
  /// Which file each shard lies in; half of the time a file each.
  std::vector<int> files(int shards) {
    if ((*this)(0, 1) == 0) return {};
    std::vector<int> of(static_cast<std::size_t>(shards));
    const std::int64_t files = (*this)(1, shards);
    for (std::size_t s = 0; s < of.size(); ++s) of[s] = static_cast<int>(static_cast<std::int64_t>(s) % files);
    std::shuffle(of.begin(), of.end(), engine_);
    return of;
  }

 private:
  std::mt19937 engine_;
};

/// The same tensors and values in other pieces of other units, held by other shards.
inline SmallModel cut_again(const SmallModel& model, std::uint32_t seed) {
  Draw draw(seed);
  SmallModel cut = model;
  cut.layout.shards = static_cast<int>(draw(1, 6));
  cut.layout.files = draw.files(cut.layout.shards);
  cut.layout.units.clear();
  for (std::int64_t u = 0, n = draw(1, 7); u < n; ++u)
    cut.layout.units.push_back({fmt::format("unit-{}", u), 0, draw.holders(cut.layout.shards)});
  for (auto& t : cut.layout.tensors) {
    t.pieces.clear();
    for (auto& box : draw.boxes(t.shape)) {
      const auto u = draw(0, std::ssize(cut.layout.units) - 1);
      auto& elements = cut.layout.units[static_cast<std::size_t>(u)].elements;
      t.pieces.push_back({static_cast<int>(u), elements + draw(0, 20), box});
      elements = t.pieces.back().offset + box.elements();
    }
  }
  for (auto& unit : cut.layout.units) unit.elements += draw(0, 9);
  for (std::size_t g = 0; g < model.layout.groups.size(); ++g) {
    cut.values[g].clear();
    for (auto& unit : cut.layout.units) cut.values[g].push_back(random_values(unit.elements, seed + 1));
    for (std::size_t t = 0; t < model.layout.tensors.size(); ++t) {
      const auto natural = model.tensor(g, model.layout.tensors[t]);
      for (auto& piece : cut.layout.tensors[t].pieces) {
        auto to = cut.values[g][static_cast<std::size_t>(piece.unit)].begin() + piece.offset;
        for (auto at : natural_offsets(model.layout.tensors[t].shape, piece.box)) *to++ = natural[static_cast<std::size_t>(at)];
      }
    }
  }
  return cut;
}

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
