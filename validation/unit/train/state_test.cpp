// The state of ranks that keep boxes of tensors: made, loaded and saved as by ranks that keep them whole.
#include "train/engine/state.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <tuple>

#include "../altered_checkpoint.hpp"
#include "../model/random_models.hpp"
#include "../scratch.hpp"
#include "../sharded_checkpoint.hpp"
#include "io/checkpoint/format.hpp"
#include "memory/runtime.hpp"
#include "optimizer/state.hpp"

namespace tessera::state_test {
namespace {

using Tensors = std::map<std::string, std::vector<float>>;

/// One of `shards` ranks that share a layout.
struct Rank {
  RunPlan plan;
  Communicators none;
  RankMemory memory;
  ModelState state;
  explicit Rank(RunPlan of) : plan(std::move(of)), memory(plan, plan.memory.bytes, nullptr, none), state(plan, memory) {}
  Rank(const Deck& deck, const Layout& layout, int rank, Purpose purpose) : Rank(plan_of(deck, layout, rank, purpose)) {}

  static RunPlan plan_of(const Deck& deck, const Layout& layout, int rank, Purpose purpose) {
    Mesh mesh;
    mesh.extents[static_cast<std::size_t>(Axis::dp)] = layout.shards;
    BuildRequest request = request_for(deck, mesh, rank, purpose);
    request.layout = layout;
    return plan_run(request);
  }
};

/// All ranks of a run whose tensors are cut among `cuts`.
struct Ranks {
  std::vector<Layout> layouts;
  std::deque<Rank> all;  ///< shard by shard of the checkpoint
  Ranks(const Deck& deck, int shards, int cuts, Purpose purpose = Purpose::training) : layouts(test::cut_layouts(deck, shards, cuts)) {
    for (int shard = 0; shard < shards * cuts; ++shard)
      all.emplace_back(deck, layouts[static_cast<std::size_t>(shard % cuts)], shard / cuts, purpose);
  }
  int cuts() const { return static_cast<int>(layouts.size()); }

  /// What the ranks would save of a group, in natural shapes. Copies must agree.
  Tensors tensors(int group) const {
    Tensors tensors;
    for (const Parameter& p : layouts.front().table) tensors[p.name].assign(static_cast<std::size_t>(p.shape.elements()), -77.0f);
    for (std::size_t shard = 0; shard < all.size(); ++shard) {
      const Layout& layout = layouts[shard % layouts.size()];
      for (const io::ShardSlice& slice : all[shard].state.checkpoint_slices()) {
        if (slice.group != group) continue;
        io::PageBuffer own;
        const auto values = slice.data.values(0, slice.data.elements(), own);
        const Unit& unit = layout.units[static_cast<std::size_t>(slice.unit)];
        const Range mine = owned_range(layout, slice.unit, static_cast<int>(shard) / cuts());
        for (const Piece& piece : pieces_in(unit, mine.begin, mine.end))
          for_each_run(layout, unit, piece, [&](const NaturalRun& run) {
            for (std::int64_t i = 0; i < run.elements; ++i) {
              float& to =
                  tensors[layout.table[static_cast<std::size_t>(piece.parameter)].name][static_cast<std::size_t>(run.tensor_offset + i)];
              const float value = values[static_cast<std::size_t>(run.unit_offset - mine.begin + i)];
              EXPECT_TRUE(to == -77.0f || to == value) << "two ranks keep different copies";
              to = value;
            }
          });
      }
    }
    return tensors;
  }

  std::string save(const std::string& root) const {
    const SavedLayout of_layouts = test::saved_layout_of(layouts);
    const io::CheckpointLayout& saved = of_layouts.checkpoint;
    const auto& units = of_layouts.units;
    io::begin_checkpoint(root, 9);
    for (std::size_t shard = 0; shard < all.size(); ++shard) {
      std::vector<io::ShardSlice> slices;
      for (io::ShardSlice& slice : all[shard].state.checkpoint_slices()) {
        slice.unit = units[shard % units.size()][static_cast<std::size_t>(slice.unit)];
        if (slice.unit >= 0) slices.push_back(slice);
      }
      io::write_shard(root, 9, saved, static_cast<int>(shard), slices);
    }
    io::write_index(root, saved, {.step = 9, .deck = "", .identity = "", .version = "test"});
    io::commit_checkpoint(root, 9, {});
    return root + "/" + io::checkpoint_name(9);
  }
};

/// All ranks of a mesh, each with the layout that it would have in a run.
struct MeshRanks {
  std::deque<Rank> all;
  MeshRanks(const Deck& deck, const Mesh& mesh) {
    for (int rank = 0; rank < mesh.ranks(); ++rank) all.emplace_back(plan_run(request_for(deck, mesh, rank, Purpose::training)));
  }
  std::string save(const std::string& root) const {
    io::begin_checkpoint(root, 9);
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      io::write_shard(root, 9, all[rank].state.checkpoint_layout(), static_cast<int>(rank), all[rank].state.checkpoint_slices());
    io::write_index(root, all.front().state.checkpoint_layout(), {.step = 9, .deck = "", .identity = "", .version = "test"});
    io::commit_checkpoint(root, 9, {});
    return root + "/" + io::checkpoint_name(9);
  }
};

const std::vector<std::pair<int, int>> meshes = {{1, 1}, {2, 1}, {1, 2}, {2, 3}, {3, 2}};  // shards, cuts

Deck deck_of(int shards, int stage) {
  return test::tiny_deck({fmt::format("zero.stage={}", stage), "zero.param_persistence_threshold=600", "model.qk_norm=true",
                          "model.qkv_bias=true", "precision.compute=fp32"},
                         shards);
}

TEST(ModelState, BoxesBeginWithTheValuesOfTheWhole) {
  const Ranks one(deck_of(1, 0), 1, 1);
  one.all[0].state.initialise();
  const Tensors expected = one.tensors(0), zeros = one.tensors(1);
  EXPECT_GT(std::ranges::count_if(expected.at("embedding.weight"), [](float x) { return x != 0; }), 1000);
  for (const auto& [shards, cuts] : meshes)
    for (int stage : {0, 1, 3}) {
      const Ranks ranks(deck_of(shards, stage), shards, cuts);
      for (const Rank& rank : ranks.all) rank.state.initialise();
      EXPECT_EQ(ranks.tensors(0), expected) << "stage " << stage << ", " << shards << " shards of " << cuts << " cuts";
      EXPECT_EQ(ranks.tensors(1), zeros);
    }
}

TEST(ModelState, ValuesAreSetByNaturalElement) {
  const Ranks ranks(deck_of(2, 1), 2, 3);
  for (const Rank& rank : ranks.all)
    rank.state.set([](const Parameter& p, std::int64_t first, std::span<float> out) {
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = test::value_at("set", p.name, first + static_cast<std::int64_t>(i));
    });
  for (const auto& [name, values] : ranks.tensors(0))
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(values[i], test::value_at("set", name, static_cast<std::int64_t>(i))) << name << " element " << i;
}

/// Of a box of at most two dims: where its element lies in the tensor.
std::int64_t natural_of(const Parameter& p, const Box& box, std::int64_t i) {
  const std::int64_t width = box.count.back();
  return p.shape.dims.size() == 1 ? box.start[0] + i : (box.start[0] + i / width) * p.shape.dims.back() + box.start[1] + i % width;
}

TEST(ModelState, ValuesAreReadByBoxAndMomentsBecomeZero) {
  test::Scratch scratch;
  for (const auto& [shards, cuts] : meshes)
    for (int stage : {0, 3}) {
      const Deck deck = deck_of(shards, stage);
      const Ranks ranks(deck, shards, cuts);
      const io::CheckpointReader other(test::write_sharded(scratch / fmt::format("{}-{}-{}", shards, cuts, stage), deck, 1));
      for (const Rank& rank : ranks.all) {
        rank.state.load(other);
        rank.state.read({.has = [](const Parameter&) { return true; },
                         .read =
                             [](const Parameter& p, const Box& box, std::int64_t first, std::span<float> out) {
                               for (std::size_t i = 0; i < out.size(); ++i)
                                 out[i] = test::value_at("read", p.name, natural_of(p, box, first + static_cast<std::int64_t>(i)));
                             }});
      }
      for (const auto& [name, values] : ranks.tensors(0))
        for (std::size_t i = 0; i < values.size(); ++i)
          ASSERT_EQ(values[i], test::value_at("read", name, static_cast<std::int64_t>(i))) << name << " element " << i;
      for (int group : {1, 2})
        for (const auto& [name, values] : ranks.tensors(group)) EXPECT_EQ(std::ranges::count(values, 0.0f), std::ssize(values)) << name;
    }
}

TEST(ModelState, WhatIsNotTrainedIsNotReadAndBecomesZero) {
  const Deck deck = test::tiny_deck({"model.experts=4", "model.router_balance=bias"});
  const Rank rank(plan_run(request_for(deck, {}, 0, Purpose::training)));
  test::Scratch scratch;
  rank.state.load(io::CheckpointReader(test::write_sharded(scratch.path(), deck, 1)));
  rank.state.read({.has = [](const Parameter& p) { return p.trained; },
                   .read = [](const Parameter&, const Box&, std::int64_t, std::span<float> out) { std::ranges::fill(out, 2.0f); }});
  std::size_t zeros = 0;
  for (const io::ShardSlice& slice : rank.state.checkpoint_slices()) {
    if (slice.group != 0) continue;
    const Unit& unit = rank.plan.layout().units[static_cast<std::size_t>(slice.unit)];
    io::PageBuffer own;
    const auto values = slice.data.values(0, slice.data.elements(), own);
    for (const Slot& slot : unit.slots) {
      const auto of_slot = values.subspan(static_cast<std::size_t>(slot.offset), static_cast<std::size_t>(slot.elements));
      EXPECT_EQ(std::ranges::count(of_slot, unit.trained ? 2.0f : 0.0f), slot.elements) << unit.name;
      zeros += unit.trained ? 0u : 1u;
    }
  }
  EXPECT_EQ(zeros, 2u);
}

// Adapters beside a model of files are those of a run without files.
TEST(ModelState, WhatTheSourceLacksIsDrawn) {
  for (const auto& [shards, cuts] : meshes) {
    const Deck deck = test::tiny_deck({"lora.rank=3", fmt::format("zero.stage={}", shards > 1 ? 3 : 0)}, shards);
    const Ranks ranks(deck, shards, cuts);
    for (const Rank& rank : ranks.all) rank.state.initialise();
    const auto drawn = ranks.tensors(0);
    for (const Rank& rank : ranks.all)
      rank.state.read({.has = [](const Parameter& p) { return !p.adapter; },
                       .read = [](const Parameter&, const Box&, std::int64_t, std::span<float> out) { std::ranges::fill(out, 2.0f); }});
    std::size_t adapters = 0;
    for (const auto& [name, values] : ranks.tensors(0)) {
      const bool adapter = name.find(".lora_") != name.npos;
      EXPECT_EQ(values, adapter ? drawn.at(name) : std::vector<float>(values.size(), 2.0f)) << name;
      adapters += adapter;
      if (name.ends_with(".lora_b")) {
        EXPECT_EQ(std::ranges::count(values, 0.0f), std::ssize(values)) << name;
      } else if (adapter) {
        const auto bound = static_cast<float>(1 / std::sqrt(static_cast<double>(values.size()) / 3));
        EXPECT_TRUE(std::ranges::all_of(values, [&](float x) { return std::abs(x) <= bound; })) << name;
        EXPECT_GT(std::ranges::max(values), 0.8f * bound) << name;
        EXPECT_LT(std::ranges::min(values), -0.8f * bound) << name;
      }
    }
    EXPECT_EQ(adapters, 28u);
  }
}

// Experts on any ranks: what one mesh has written another one reads, writes, and has the same of.
TEST(ModelState, RanksWithAnyExpertsLoadAndSaveWhatOthersSaved) {
  test::Scratch scratch;
  const std::string groups[] = {"master", "adam_m", "adam_v"};
  const std::vector<Mesh> meshes = {{},
                                    {{1, 1, 1, 1, 2, 1}},
                                    {{1, 1, 2, 1, 2, 1}},
                                    {{2, 1, 1, 1, 2, 1}},
                                    {{1, 1, 1, 1, 4, 1}},
                                    {{1, 1, 3, 1, 1, 1}},
                                    {{1, 1, 1, 1, 1, 2}},
                                    {{1, 1, 1, 2, 2, 1}},
                                    {{2, 1, 1, 1, 2, 2}},
                                    {{1, 2, 1, 2, 1, 2}}};
  const auto deck = [](const Mesh& mesh, int stage) {
    return test::tiny_deck({"model.experts=4", "model.expert_ff_width=10", "model.shared_ff_width=12", "model.router_balance=bias",
                            fmt::format("mesh.ep={}", mesh.size(Axis::ep)), fmt::format("mesh.pp={}", mesh.size(Axis::pp)),
                            fmt::format("mesh.tp={}", mesh.size(Axis::tp)), fmt::format("mesh.cp={}", mesh.size(Axis::cp)),
                            fmt::format("mesh.replicate={}", mesh.size(Axis::replicate)), fmt::format("zero.stage={}", stage),
                            "zero.param_persistence_threshold=600", "precision.compute=fp32"},
                           mesh.ranks());
  };
  const std::string whole = test::write_sharded(scratch / "whole", deck({}, 0), 1, 5, 1);
  const io::CheckpointReader expected(whole);
  int number = 0;
  for (std::size_t m = 0; m < meshes.size(); ++m)
    for (const std::size_t step : {1, 2}) {
      const Mesh &from = meshes[m], &to = meshes[(m + step) % meshes.size()];
      SCOPED_TRACE(fmt::format("{} from {}", describe(to), describe(from)));
      const auto stage_on = [](const Mesh& mesh, int stage) { return mesh.size(Axis::replicate) == 1 ? stage : std::max(1, stage); };
      const MeshRanks writers(deck(from, stage_on(from, number % 4)), from), readers(deck(to, stage_on(to, 3 - number % 4)), to);
      ++number;
      for (const Rank& rank : writers.all) rank.state.load(expected);
      const io::CheckpointReader between(writers.save(scratch / fmt::format("from{}", number)));
      for (const Rank& rank : readers.all) rank.state.load(between);
      const io::CheckpointReader after(readers.save(scratch / fmt::format("to{}", number)));
      for (const io::CheckpointReader* reader : {&between, &after}) {
        reader->verify({});
        ASSERT_EQ(reader->layout().tensors.size(), expected.layout().tensors.size());
        for (const std::string& group : groups)
          for (const io::CheckpointTensor& t : expected.layout().tensors) {
            const io::CheckpointTensor* found = reader->find(group, t.name);
            ASSERT_EQ(found != nullptr, group == "master" || !t.name.ends_with("router_bias")) << group << " " << t.name;
            if (found) {
              ASSERT_EQ(reader->tensor_hash(group, *found), expected.tensor_hash(group, t)) << group << " " << t.name;
            }
          }
      }
    }
}

TEST(ModelState, AnyCutLoadsAndSavesWhatAnyOtherSaved) {
  test::Scratch scratch;
  const std::string groups[] = {"master", "adam_m", "adam_v"};
  int number = 0;
  for (const auto& [from_shards, from_cuts] : meshes)
    for (const auto& [shards, cuts] : meshes) {
      SCOPED_TRACE(fmt::format("{} shards of {} cuts from {} of {}", shards, cuts, from_shards, from_cuts));
      const std::string root = scratch / std::to_string(++number);
      const int stage = number % 4;
      const std::string folder = test::write_sharded(root, deck_of(from_shards, stage), from_shards, 5, from_cuts);
      const Ranks ranks(deck_of(shards, 3 - stage), shards, cuts);
      for (const Rank& rank : ranks.all) rank.state.load(io::CheckpointReader(folder));
      for (int g = 0; g < 3; ++g)
        for (const auto& [name, values] : ranks.tensors(g))
          for (std::size_t i = 0; i < values.size(); ++i)
            ASSERT_EQ(values[i], test::value_at(groups[g], name, static_cast<std::int64_t>(i)))
                << groups[g] << " " << name << " element " << i;
      const io::CheckpointReader before(folder), after(ranks.save(root));
      after.verify({});
      EXPECT_EQ(io::checkpoint_format(after.layout()), cuts == 1 ? 1 : 2);
      for (const std::string& group : groups)
        for (const io::CheckpointTensor& t : before.layout().tensors)
          ASSERT_EQ(after.tensor_hash(group, *after.find(t.name)), before.tensor_hash(group, t)) << group << " " << t.name;
    }
}

TEST(ModelState, WhatIsNoNumberIsNamedByTensorAndElement) {
  const std::string tensor = "layers.1.mlp.w_up";
  const float infinity = std::numeric_limits<float>::infinity();
  for (const auto& [group, value, says] : {std::tuple("master", std::numeric_limits<float>::quiet_NaN(), "nan"),
                                           std::tuple("adam_m", infinity, "inf"), std::tuple("adam_v", -infinity, "-inf")})
    for (const auto& [shards, cuts] : meshes) {  // whole ranges of units, and boxes of tensors
      test::Scratch scratch;
      const std::string folder = test::write_sharded(scratch.path(), deck_of(2, 0), 2, 5, 1);
      const io::CheckpointPiece piece = io::CheckpointReader(folder).find(tensor)->pieces.front();
      test::alter_checkpoint(folder, group, piece.unit, piece.offset + 40, value);
      const Ranks ranks(deck_of(shards, 3), shards, cuts);
      int refused = 0;
      for (const Rank& rank : ranks.all) try {
          rank.state.load(io::CheckpointReader(folder));
        } catch (const Error& error) {
          ++refused;
          EXPECT_EQ(error.code, ExitCode::numerics);
          EXPECT_HAS(std::string(error.what()),
                     fmt::format("{}: {} of {}, element 40 of the tensor, is {}: ", folder, group, tensor, says));
        }
      EXPECT_EQ(refused, 1) << group << " on " << shards << " shards of " << cuts << " cuts: who keeps it says it";
    }
}

// Biases of routers are steps of a thousandth, which bf16 would round away.
TEST(ModelState, BiasesAreReadInFp32WhateverTheComputeType) {
  test::Scratch scratch;
  const Deck deck = test::tiny_deck({"model.experts=4", "model.router_balance=bias", "precision.compute=bf16"});
  const io::CheckpointReader reader(test::write_sharded(scratch.path(), deck, 2, 5, 1));
  const Rank rank(plan_run(request_for(deck, {}, 0, Purpose::evaluation)));
  rank.state.load(reader);
  const TensorRef at = rank.plan.layout().find("layers.1.moe.router_bias");
  const auto* biases =
      reinterpret_cast<const float*>(rank.memory.address(rank.plan.schedule.find_buffer("parameters.untrained"))) + at.offset;
  for (std::int64_t e = 0; e < 4; ++e) EXPECT_EQ(biases[e], test::value_at("master", "layers.1.moe.router_bias", e));
}

/// Without training the compute copies alone are read.
TEST(ModelState, WeightsOfACutCheckpointAreEvaluated) {
  test::Scratch scratch;
  const Deck deck = deck_of(1, 0);
  const std::string folder = test::write_sharded(scratch.path(), deck, 2, 5, 3);
  for (int cuts : {1, 2}) {
    const Ranks ranks(deck, 1, cuts, Purpose::evaluation);
    for (std::size_t r = 0; r < ranks.all.size(); ++r) {
      const Rank& rank = ranks.all[r];
      rank.state.load(io::CheckpointReader(folder));
      for (const Unit& unit : ranks.layouts[r].units)
        for (const Slot& slot : unit.slots) {
          const Parameter& p = ranks.layouts[r].table[static_cast<std::size_t>(slot.parameter)];
          const auto* values =
              reinterpret_cast<const float*>(rank.memory.address(rank.plan.schedule.find_buffer("parameters." + unit.name))) + slot.offset;
          for (std::int64_t i = 0; i < slot.elements; ++i) {
            const std::int64_t natural = natural_of(p, slot.box, i);
            ASSERT_EQ(values[i], test::value_at("master", p.name, natural)) << p.name << " element " << natural;
          }
        }
    }
  }
}

TEST(SavedLayout, CopiesAreSavedOnceAndUnitsAreNamedApart) {
  const Deck deck = test::tiny_deck({"zero.stage=0"});
  const auto layouts = test::cut_layouts(deck, 1, 2);
  const SavedLayout of_layouts = test::saved_layout_of(layouts);
  const io::CheckpointLayout& saved = of_layouts.checkpoint;
  const auto& units = of_layouts.units;
  std::map<std::string, std::size_t> pieces;
  for (const auto& t : saved.tensors) pieces[t.name] = t.pieces.size();
  EXPECT_EQ(pieces.at("layers.0.attention.norm"), 1u);
  EXPECT_EQ(pieces.at("layers.0.attention.wq"), 2u);
  EXPECT_EQ(saved.units[1].name, "layers.0.part-0");
  EXPECT_EQ(saved.units[1].holders, std::vector<int>{0});
  EXPECT_EQ(units[0].size(), layouts[0].units.size());
  // Ranks that keep the same boxes of all: nothing is left to save for the second of them.
  const Layout whole = layout_for(deck, Mesh{}, 0);
  const std::vector<Holding> twice{test::holding_of(whole, {0}), test::holding_of(whole, {1})};
  const SavedLayout once = saved_layout(twice, state_groups(OptimizerKeys{}), 2);
  EXPECT_EQ(once.checkpoint.units.size(), whole.units.size());
  EXPECT_EQ(once.units[1], std::vector<int>(whole.units.size(), -1));
  // Stages of a pipeline: parts of the model, each in its own units.
  std::vector<Box> first, second;
  for (const Parameter& p : whole.table) {
    const bool early = p.part == Part::embedding || p.layer == 0;
    Box nothing = whole_box(p.shape);
    nothing.count[0] = 0;
    first.push_back(early ? whole_box(p.shape) : nothing), second.push_back(early ? nothing : whole_box(p.shape));
  }
  const Layout stages[] = {make_layout(whole.table, 1, 0, first), make_layout(whole.table, 1, 0, second)};
  const std::vector<Holding> pipeline{test::holding_of(stages[0], {0}), test::holding_of(stages[1], {1})};
  const SavedLayout staged = saved_layout(pipeline, state_groups(OptimizerKeys{}), 2);
  io::require_layout(staged.checkpoint);
  ASSERT_EQ(staged.checkpoint.units.size(), 4u);
  EXPECT_EQ(staged.checkpoint.units[2].name, "layers.1");
  EXPECT_EQ(staged.checkpoint.units[2].holders, std::vector<int>{1});
}

}  // namespace
}  // namespace tessera::state_test
