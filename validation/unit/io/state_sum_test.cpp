// The digest of a state: the same however it is cut, another where anything of it is.
#include "io/checkpoint/state_sum.hpp"

#include <gtest/gtest.h>

#include <bit>

#include "checkpoint_model.hpp"

namespace tessera::io::state_sum_test {
namespace {

StateSum sum_of(const test::SmallModel& model) {
  StateSum all{};
  for (int rank = 0; rank < model.layout.shards; ++rank) {
    std::vector<ShardSlice> slices;
    for (const auto& [group, of] : slices_of_groups(model.layout, rank)) {
      const std::vector<float>& unit = model.values[static_cast<std::size_t>(group)][static_cast<std::size_t>(of.unit)];
      slices.push_back(
          {group, of.unit,
           std::span<const float>(unit).subspan(static_cast<std::size_t>(of.begin), static_cast<std::size_t>(of.end - of.begin))});
    }
    const StateSum mine = sum_of_state(model.layout, rank, model.layout.shards, slices);
    all[0] += mine[0], all[1] += mine[1];
  }
  return all;
}

TEST(StateSum, IsTheSameOverAnyNumberOfShards) {
  const StateSum alone = sum_of(test::SmallModel(1));
  for (int shards = 2; shards <= 5; ++shards) EXPECT_EQ(sum_of(test::SmallModel(shards)), alone) << shards;
}

TEST(StateSum, IsTheSameOverBoxesOfATensor) {
  // A (6, 4) tensor whole, and as two boxes of columns in units of their own.
  const std::vector<float> values = test::random_values(24, 3);
  CheckpointLayout whole;
  whole.groups = {"master"};
  whole.units = {{"a", 24}};
  whole.tensors = {{"t", {6, 4}, 0, 0}};
  const std::vector<ShardSlice> one = {{0, 0, std::span<const float>(values)}};
  CheckpointLayout cut = whole;
  cut.units = {{"left", 7}, {"right", 18}};
  cut.tensors = {{"t", {6, 4}, {{0, 1, Box{{0, 0}, {6, 1}}}, {1, 0, Box{{0, 1}, {6, 3}}}}}};
  std::vector<float> left(7, 5.0f), right(18);
  for (std::size_t row = 0; row < 6; ++row) {
    left[1 + row] = values[4 * row];
    for (std::size_t column = 1; column < 4; ++column) right[3 * row + column - 1] = values[4 * row + column];
  }
  const std::vector<ShardSlice> two = {{0, 0, std::span<const float>(left)}, {0, 1, std::span<const float>(right)}};
  EXPECT_EQ(sum_of_state(cut, 0, 1, two), sum_of_state(whole, 0, 1, one)) << "gaps between tensors do not count";
}

TEST(StateSum, SeesEachBitAndEachPlace) {
  const test::SmallModel model(2);
  const StateSum right = sum_of(model);
  for (const auto& [group, unit, element] :
       {std::tuple{0, 0, 16}, {0, 1, 31 * 77 - 1}, {1, 1, 5002}, {1, 2, 0}, {1, 0, 16 + 1201 * 249 - 1}})
    for (const int bit : {0, 13, 31}) {
      test::SmallModel turned = model;
      float& value = turned.values[static_cast<std::size_t>(group)][static_cast<std::size_t>(unit)][static_cast<std::size_t>(element)];
      value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ 1u << bit);
      const StateSum wrong = sum_of(turned);
      EXPECT_NE(wrong[0], right[0]) << group << " " << unit << " " << element;
      EXPECT_NE(wrong[1], right[1]);
    }
  test::SmallModel swapped = model;
  std::swap(swapped.values[0][1][5], swapped.values[0][1][6]);
  EXPECT_NE(sum_of(swapped), right);
  test::SmallModel moments = model;
  std::swap(moments.values[0][1], moments.values[1][1]);
  EXPECT_NE(sum_of(moments), right) << "a moment in the place of a weight";
}

}  // namespace
}  // namespace tessera::io::state_sum_test
