// Layouts of random models: every tensor once, on blocks, never overlapping, joined ones together.
#include "model/table/layout.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/check.hpp"
#include "random_models.hpp"

namespace tessera::layout_test {
namespace {

const Parameter& row(const Layout& layout, const Slot& slot) { return layout.table[static_cast<std::size_t>(slot.parameter)]; }

void check_slots(const Layout& layout, const Unit& unit) {
  ASSERT_EQ(unit.elements % (layout.shards * shard_block), 0) << unit.name;
  std::int64_t end = 0;
  for (std::size_t s = 0; s < unit.slots.size(); ++s) {
    const Slot& slot = unit.slots[s];
    ASSERT_TRUE(lies_in(slot.box, row(layout, slot).shape));
    ASSERT_EQ(slot.elements, slot.box.elements());
    if (row(layout, slot).joined) {
      ASSERT_GT(s, 0u);
      ASSERT_EQ(slot.offset, end) << row(layout, slot).name << " does not begin where its neighbour ends";
      ASSERT_EQ(slot.parameter, unit.slots[s - 1].parameter + 1) << "joined to another tensor than in the table";
    } else {
      ASSERT_EQ(slot.offset % shard_block, 0) << row(layout, slot).name;
      ASSERT_GE(slot.offset, end) << row(layout, slot).name << " overlaps the tensor before it";
      ASSERT_LT(slot.offset - end, shard_block) << "more padding than alignment needs";
    }
    if (s > 0) {
      ASSERT_GT(slot.parameter, unit.slots[s - 1].parameter) << "not in table order";
    }
    end = slot.offset + slot.elements;
  }
  ASSERT_LE(end, unit.elements);
  ASSERT_LT(unit.elements - end, layout.shards * shard_block) << "more padding than the shards need";
}

TEST(Layout, RandomModels) {
  test::Random random(1);
  for (int trial = 0; trial < 500; ++trial) {
    const Layout layout = test::random_layout(random);
    std::vector<int> seen(layout.table.size(), 0);
    for (const Unit& unit : layout.units) {
      check_slots(layout, unit);
      if (testing::Test::HasFatalFailure()) {
        FAIL() << "trial " << trial << ", unit " << unit.name;
      }
      for (const Slot& slot : unit.slots) {
        ++seen[static_cast<std::size_t>(slot.parameter)];
        const Parameter& p = row(layout, slot);
        const std::string home = p.part == Part::embedding ? "embedding"
                                 : p.part == Part::head    ? "head"
                                                           : fmt::format("layers.{}", p.layer);
        EXPECT_EQ(unit.name, unit.persistent ? "persistent" : home) << p.name;
      }
    }
    EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; })) << "a tensor is missing or there twice";
  }
}

/// A random part of each tensor, or for some parts of the model nothing.
std::vector<Box> random_boxes(const std::vector<Parameter>& table, test::Random& random) {
  std::vector<Box> boxes;
  bool kept = true;
  for (const Parameter& p : table) {
    if (!p.joined) kept = random(0, 4) > 0;
    Box box = whole_box(p.shape);
    for (std::size_t d = 0; d < box.start.size(); ++d) {
      box.start[d] = random(0, 1) ? random(0, p.shape.dims[d] - 1) : 0;
      box.count[d] = kept ? random(1, p.shape.dims[d] - box.start[d]) : 0;
    }
    boxes.push_back(box);
  }
  return boxes;
}

TEST(Layout, BoxesOfTensors) {
  test::Random random(5);
  for (int trial = 0; trial < 300; ++trial) {
    const auto table = parameter_table(test::random_model(random));
    const auto boxes = random_boxes(table, random);
    const Layout layout = make_layout(table, static_cast<int>(random(1, 5)), random(0, 2000), boxes);
    std::vector<int> seen(table.size(), 0);
    for (const Unit& unit : layout.units) {
      ASSERT_FALSE(unit.slots.empty());
      ASSERT_NO_FATAL_FAILURE(check_slots(layout, unit)) << "trial " << trial << ", unit " << unit.name;
      for (const Slot& slot : unit.slots) {
        const auto p = static_cast<std::size_t>(slot.parameter);
        ++seen[p];
        EXPECT_EQ(slot.box, boxes[p]);
        EXPECT_EQ(layout.find_alone(table[p].name).elements, boxes[p].elements());
        EXPECT_EQ(layout.find_alone(table[p].name).offset, slot.offset);
      }
    }
    for (std::size_t p = 0; p < table.size(); ++p) EXPECT_EQ(seen[p], boxes[p].elements() > 0) << table[p].name;
  }
}

TEST(Layout, BoxesThatCannotBe) {
  const auto table = parameter_table(test::tiny_deck().model);
  const auto refused = [&](std::size_t row, const Box& box) {
    std::vector<Box> boxes;
    for (const Parameter& p : table) boxes.push_back(whole_box(p.shape));
    boxes[row] = box;
    EXPECT_THROW(make_layout(table, 1, 0, boxes), Error);
  };
  refused(0, {{0, 0}, {table[0].shape.dims[0] + 1, 1}});
  refused(0, {{0}, {1}});
  const auto joined = static_cast<std::size_t>(std::ranges::find_if(table, &Parameter::joined) - table.begin());
  refused(joined, {{0, 0}, {0, 0}});
  EXPECT_THROW(make_layout(table, 1, 0, {Box()}), Error);
}

/// Runs against a walk over the box's elements.
TEST(PiecesIn, RunsLeadToTheNaturalElements) {
  test::Random random(6);
  for (int trial = 0; trial < 200; ++trial) {
    const auto table = parameter_table(test::random_model(random));
    const Layout layout = make_layout(table, 2, random(0, 2000), trial % 4 ? random_boxes(table, random) : std::vector<Box>());
    for (const Unit& unit : layout.units) {
      const std::int64_t begin = random(0, unit.elements), end = random(begin, unit.elements);
      for (const Piece& piece : pieces_in(unit, begin, end)) {
        const Box& box = unit.slots[static_cast<std::size_t>(piece.slot)].box;
        const Shape& shape = layout.table[static_cast<std::size_t>(piece.parameter)].shape;
        std::int64_t at = piece.unit_offset, runs = 0;
        for_each_run(layout, unit, piece, [&](const NaturalRun& run) {
          ++runs;
          ASSERT_EQ(run.unit_offset, at);
          for (std::int64_t i = 0; i < run.elements; ++i, ++at) {
            std::int64_t rest = at - unit.slots[static_cast<std::size_t>(piece.slot)].offset, natural = 0, stride = 1;
            for (std::size_t d = box.count.size(); d-- > 0;) {
              natural += (box.start[d] + rest % box.count[d]) * stride;
              rest /= box.count[d], stride *= shape.dims[d];
            }
            ASSERT_EQ(run.tensor_offset + i, natural);
          }
        });
        ASSERT_EQ(at, piece.unit_offset + piece.elements);
        if (box == whole_box(shape)) {
          ASSERT_EQ(runs, 1);
        }
      }
    }
  }
}

TEST(Layout, ShardsDoNotMoveTensors) {
  // Checkpoints are read at another number of shards: only the tail's padding may differ.
  test::Random random(2);
  for (int trial = 0; trial < 100; ++trial) {
    const auto table = parameter_table(test::random_model(random));
    const std::int64_t threshold = random(0, 500);
    const Layout one = make_layout(table, 1, threshold), many = make_layout(table, static_cast<int>(random(2, 9)), threshold);
    ASSERT_EQ(one.units.size(), many.units.size());
    for (std::size_t u = 0; u < one.units.size(); ++u)
      for (std::size_t s = 0; s < one.units[u].slots.size(); ++s) EXPECT_EQ(one.units[u].slots[s].offset, many.units[u].slots[s].offset);
  }
}

TEST(Layout, TheThresholdTakesSmallTensorsAndWholeGroups) {
  test::Random random(3);
  for (int trial = 0; trial < 300; ++trial) {
    const auto table = parameter_table(test::random_model(random));
    const std::int64_t threshold = random(0, 3000);
    const Layout layout = make_layout(table, 2, threshold);
    for (const Unit& unit : layout.units)
      for (std::size_t s = 0; s < unit.slots.size(); ++s) {
        // The group of this slot: back to the tensor that is not joined, then on.
        auto first = static_cast<std::size_t>(unit.slots[s].parameter), last = first + 1;
        while (table[first].joined) --first;
        while (last < table.size() && table[last].joined) ++last;
        const bool all_small =
            std::all_of(table.begin() + static_cast<std::ptrdiff_t>(first), table.begin() + static_cast<std::ptrdiff_t>(last),
                        [&](const Parameter& p) { return p.shape.elements() <= threshold; });
        ASSERT_EQ(unit.persistent, all_small) << table[first].name << " at threshold " << threshold;
      }
  }
}

TEST(Layout, WithoutThresholdNothingIsPersistent) {
  for (const Unit& unit : make_layout(parameter_table(test::tiny_deck().model), 4, 0).units) EXPECT_FALSE(unit.persistent) << unit.name;
}

TEST(Layout, AThresholdAboveAllLeavesOneUnit) {
  const Layout layout = make_layout(parameter_table(test::tiny_deck().model), 4, 1 << 30);
  ASSERT_EQ(layout.units.size(), 1u);
  EXPECT_EQ(layout.units[0].name, "persistent");
}

TEST(Layout, FindGivesATensorWithThoseJoinedToIt) {
  const ModelKeys m = test::tiny_deck({"model.qkv_bias=true"}).model;
  const Layout layout = make_layout(parameter_table(m), 3, 0);
  const std::int64_t Q = m.heads * m.head_dim, K = m.kv_heads * m.head_dim;
  const TensorRef q = layout.find("layers.1.attention.wq"), k = layout.find("layers.1.attention.wk"),
                  b = layout.find("layers.0.attention.bq");
  EXPECT_EQ(q.elements, (Q + 2 * K) * m.width);
  EXPECT_EQ(k.elements, 2 * K * m.width);
  EXPECT_EQ(k.offset, q.offset + Q * m.width);
  EXPECT_EQ(b.elements, Q + 2 * K);
  EXPECT_EQ(layout.units[static_cast<std::size_t>(q.unit)].name, "layers.1");
  EXPECT_EQ(layout.find("layers.0.mlp.w_gate").elements, 2 * m.ff_width * m.width);
  EXPECT_EQ(layout.find("layers.0.mlp.w_down").elements, m.ff_width * m.width);
  EXPECT_THROW(layout.find("layers.9.mlp.w_up"), Error);
}

// Owners that have unlike experts: matrices of a rank's own follow each other, and small ones do not join what all of them share.
TEST(Layout, ARankKeepsItsExperts) {
  const ModelKeys m = test::tiny_deck({"model.experts=6", "model.expert_ff_width=5"}).model;
  const auto table = parameter_table(m);
  for (int part = 0; part < 3; ++part) {
    std::vector<Box> kept;
    for (const Parameter& p : table) {
      kept.push_back(whole_box(p.shape));
      if (p.part == Part::experts && p.expert / 2 != part) kept.back().count.assign(2, 0);
    }
    const Axes both = axes({Axis::dp, Axis::ep});
    const Layout layout = make_layout(table, 12, 1 << 10, kept, {.expert_owners = data_axes, .expert_shards = 4}, both);
    const std::string first = fmt::format("layers.1.moe.experts.{}.", 2 * part);
    const TensorRef gate = layout.find(first + "w_gate"), down = layout.find(first + "w_down");
    EXPECT_EQ(gate.elements, 2 * 2 * 5 * m.width);
    EXPECT_EQ(down.elements, 2 * 5 * m.width);
    for (const Unit& unit : layout.units) {
      const bool experts = unit.name.ends_with(".experts");
      EXPECT_EQ(unit.shards, experts ? 4 : 12) << unit.name;
      EXPECT_EQ(unit.owners, experts ? data_axes : both) << unit.name;
      EXPECT_EQ(unit.elements % (unit.shards * shard_block), 0);
    }
    EXPECT_EQ(layout.units[static_cast<std::size_t>(gate.unit)].name, "layers.1.experts");
    EXPECT_EQ(gate.unit, down.unit);
    EXPECT_THROW(layout.find(fmt::format("layers.1.moe.experts.{}.w_up", (2 * part + 2) % 6)), Error);
  }
}

// Of what tensor-parallel ranks have whole, what is large has a unit of its own and is sharded over them as well; what is small lies
// together.
TEST(Layout, WhatNoAxisCutsIsOwnedByAll) {
  const ModelKeys m = test::tiny_deck({"model.experts=4", "model.shared_ff_width=24"}).model;
  const auto table = parameter_table(m);
  const Axes both = axes({Axis::dp, Axis::ep}), tensor = axes({Axis::tp}), of_experts = axes({Axis::dp, Axis::tp});
  const Replication cut{.over = tensor, .copies = 2, .expert_owners = of_experts, .expert_shards = 6};
  for (const std::int64_t threshold : {0, 300, 1 << 20}) {
    const Layout layout = make_layout(table, 12, threshold, {}, cut, both);
    const auto unit_of = [&](const char* tensor) { return layout.units[static_cast<std::size_t>(layout.find(tensor).unit)]; };
    EXPECT_EQ(unit_of("layers.1.moe.norm").name, "replicated");
    EXPECT_EQ(unit_of("layers.1.moe.router").name, "replicated");
    const Unit shared = unit_of("layers.1.moe.shared.w_down"), experts = unit_of("layers.1.moe.experts.2.w_up");
    EXPECT_EQ(shared.name, threshold == 1 << 20 ? "replicated" : "layers.1.shared");
    EXPECT_EQ(shared.shards, 24);
    EXPECT_EQ(shared.owners, both | tensor);
    EXPECT_EQ(shared.persistent, threshold == 1 << 20);
    EXPECT_EQ(experts.name, "layers.1.experts");
    EXPECT_EQ(experts.shards, 6);
    EXPECT_EQ(experts.owners, of_experts);
    EXPECT_FALSE(experts.persistent);
  }
  const Layout alone = make_layout(table, 12, 0);
  EXPECT_EQ(alone.units[static_cast<std::size_t>(alone.find("layers.1.moe.shared.w_down").unit)].name, "layers.1");
}

// Biases of routers lie together, row by row, whatever the threshold, and every rank that computes with them has them.
TEST(Layout, WhatIsNotTrainedIsAUnitOfItsOwn) {
  const ModelKeys m = test::tiny_deck({"model.experts=4", "model.router_balance=bias", "model.layers=3"}).model;
  const Axes tensor = axes({Axis::tp});
  for (const bool cut : {false, true}) {
    const Layout layout = make_layout(parameter_table(m), 3, 1 << 10, {}, cut ? Replication{.over = tensor, .copies = 2} : Replication{});
    const Unit& unit = layout.units.back();
    EXPECT_EQ(unit.name, "untrained");
    EXPECT_FALSE(unit.trained);
    EXPECT_EQ(unit.type(DType::bf16), DType::f32);
    EXPECT_EQ(unit.shards, cut ? 6 : 3);
    EXPECT_EQ(unit.owners, cut ? data_axes | tensor : data_axes);
    ASSERT_EQ(unit.slots.size(), 3u);
    for (std::size_t layer = 0; layer < 3; ++layer) {
      const Parameter& p = layout.table[static_cast<std::size_t>(unit.slots[layer].parameter)];
      EXPECT_EQ(p.name, fmt::format("layers.{}.moe.router_bias", layer));
      EXPECT_EQ(unit.slots[layer].offset, static_cast<std::int64_t>(layer) * shard_block);
    }
    for (const Unit& other : layout.units) EXPECT_EQ(other.trained, &other != &unit) << other.name;
  }
}

TEST(PiecesIn, AnyRangeIsCoveredExactly) {
  test::Random random(4);
  for (int trial = 0; trial < 400; ++trial) {
    const Layout layout = test::random_layout(random);
    for (const Unit& unit : layout.units) {
      const std::int64_t begin = random(0, unit.elements), end = random(begin, unit.elements);
      std::vector<int> wanted(static_cast<std::size_t>(unit.elements), 0), got(static_cast<std::size_t>(unit.elements), 0);
      for (const Slot& slot : unit.slots)
        for (std::int64_t i = std::max(begin, slot.offset); i < std::min(end, slot.offset + slot.elements); ++i)
          wanted[static_cast<std::size_t>(i)] = slot.parameter + 1;
      for (const Piece& piece : pieces_in(unit, begin, end)) {
        ASSERT_GT(piece.elements, 0);
        const auto slot = std::find_if(unit.slots.begin(), unit.slots.end(), [&](const Slot& s) { return s.parameter == piece.parameter; });
        ASSERT_NE(slot, unit.slots.end());
        ASSERT_EQ(piece.slot_offset, piece.unit_offset - slot->offset);
        for (std::int64_t i = 0; i < piece.elements; ++i) {
          auto& owner = got[static_cast<std::size_t>(piece.unit_offset + i)];
          ASSERT_EQ(owner, 0) << "an element in two pieces";
          owner = piece.parameter + 1;
        }
      }
      ASSERT_EQ(got, wanted) << unit.name << " [" << begin << ", " << end << ")";
    }
  }
}

}  // namespace
}  // namespace tessera::layout_test
