// How units travel as codes: each element of a tensor once, in a block as long as every rank's, and plans that say so.
#include "zero/coded_parts.hpp"

#include <gtest/gtest.h>

#include "../model/random_models.hpp"
#include "zero/unit_plan.hpp"

namespace tessera::coded_parts_test {
namespace {

const Deck& deck() {
  static const Deck deck =
      test::tiny_deck({"model.layers=2", "model.qkv_bias=true", "precision.compute=bf16", "precision.fp8=tensorwise"}, 1);
  return deck;
}

TEST(CodedParts, HaveEachElementOnceAndMatricesAsCodes) {
  Fp8Shape fp8 = fp8_shape(deck());
  fp8.skip = {"layers.1.attention.wo", "head"};
  for (const int parts : {1, 2, 3, 5}) {
    const Layout layout = make_layout(parameter_table(deck().model), parts, 0);
    for (int u = 0; u < static_cast<int>(layout.units.size()); ++u) {
      const Unit& unit = layout.units[static_cast<std::size_t>(u)];
      const CodedParts coded = coded_parts(layout, u, parts, fp8);
      if (!unit.name.starts_with("layers.")) {
        EXPECT_TRUE(coded.parts.empty()) << unit.name;  // an embedding is looked up, and the head is skipped
        continue;
      }
      ASSERT_EQ(std::ssize(coded.parts), parts);
      std::vector<int> as_codes(static_cast<std::size_t>(unit.elements), -1);
      for (int r = 0; r < parts; ++r) {
        std::int64_t byte = 0;
        for (const CodedRun& run : coded.parts[static_cast<std::size_t>(r)]) {
          EXPECT_EQ(run.run.byte, byte);
          EXPECT_EQ(run.run.coded, run.matrix >= 0);
          EXPECT_GE(run.run.element, r * unit.elements / parts);
          EXPECT_LE(run.run.element + run.run.elements, (r + 1) * unit.elements / parts);
          byte += kernels::run_bytes(run.run.elements, run.run.coded);
          for (std::int64_t i = 0; i < run.run.elements; ++i) {
            int& known = as_codes[static_cast<std::size_t>(run.run.element + i)];
            EXPECT_EQ(known, -1);
            known = run.run.coded;
          }
        }
        EXPECT_LE(byte, coded.block);
        EXPECT_EQ(coded.block % kernels::fp8_run_alignment, 0);
      }
      for (const Slot& slot : unit.slots) {
        const Parameter& p = layout.table[static_cast<std::size_t>(slot.parameter)];
        const bool expected = p.shape.dims.size() == 2 && p.name != "layers.1.attention.wo";
        for (std::int64_t i = slot.offset; i < slot.offset + slot.elements; ++i)
          ASSERT_EQ(as_codes[static_cast<std::size_t>(i)], expected) << p.name;
      }
      EXPECT_EQ(std::ranges::count(coded.matrices, std::string(unit.name + ".attention.wk")), 0) << "it is joined to another";
      EXPECT_EQ(std::ranges::count(coded.matrices, std::string(unit.name + ".attention.wq")), 1);
    }
  }
}

TEST(CodedParts, AreOfWhatStageThreeGathersForProductsInFp8) {
  const Fp8Shape tensors = fp8_shape(deck());
  Fp8Shape rows = tensors;
  rows.recipe = Fp8Recipe::rowwise;
  const auto is_coded = [&](const UnitRules& rules, int size) {
    const Layout layout = make_layout(parameter_table(deck().model), size, 0);
    const auto found = std::ranges::find(layout.units, "layers.1", &Unit::name);
    const Group owners = group_of({{1, 1, size, 1, 1, 1}}, data_axes, 0);
    return plan_unit(layout, static_cast<int>(found - layout.units.begin()), rules, {owners}).is_coded();
  };
  EXPECT_TRUE(is_coded({.stage = 3, .fp8 = &tensors}, 2));
  EXPECT_TRUE(is_coded({.stage = 3, .offload_parameters = true, .fp8 = &tensors}, 2));
  EXPECT_FALSE(is_coded({.stage = 3, .fp8 = &tensors}, 1));
  EXPECT_FALSE(is_coded({.stage = 2, .fp8 = &tensors}, 2));
  EXPECT_FALSE(is_coded({.stage = 3, .training = false, .fp8 = &tensors}, 2));
  EXPECT_FALSE(is_coded({.stage = 3, .quantized_weights = true, .fp8 = &tensors}, 2));
  EXPECT_FALSE(is_coded({.stage = 3, .fp8 = &rows}, 2));
  EXPECT_FALSE(is_coded({.stage = 3}, 2));
}

}  // namespace
}  // namespace tessera::coded_parts_test
