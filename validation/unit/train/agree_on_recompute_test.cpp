// activation.recompute = "auto" over ranks: whatever each has, all choose the same, for the least.
#include "train/engine/agree_on_recompute.hpp"

#include <gtest/gtest.h>

#include "../model/random_models.hpp"
#include "../topology/world_main.hpp"
#include "schedule/plan/memory_plan.hpp"

namespace tessera {
namespace {

using testing::world;

constexpr auto host = static_cast<std::size_t>(MemoryKind::host);

BuildRequest request_with(std::vector<std::string> overrides) {
  overrides.insert(overrides.end(), {"model.layers=4", "batch.sequence_length=64", "memory.host=1000 GiB"});
  const Deck deck = test::tiny_deck(overrides, world().ranks());
  return request_for(deck, make_mesh(deck, world().ranks()), world().rank(), Purpose::training);
}

/// Of rank 0, whose plan is the one that auto looks at.
std::int64_t bytes_of_rank_0(BuildRequest request, const std::vector<RecomputeChoice>& choice) {
  request = request_for(request.deck, make_mesh(request.deck, world().ranks()), 0, Purpose::training);
  request.recompute = choice;
  return bytes_of(place(build_schedule(request)).bytes, MemoryKind::host);
}

TEST(AgreeOnRecompute, AllRanksChooseForTheOneWithTheLeast) {
  const BuildRequest request = request_with({"activation.recompute=auto"});
  const std::int64_t all = bytes_of_rank_0(request, {RecomputeChoice{}});
  for (int poor = 0; poor < world().ranks(); ++poor) {
    const std::int64_t least = all * 9 / 10;
    MemoryLimits limits;
    limits[host] = MemoryLimit{world().rank() == poor ? least : 2 * all, "this rank's"};
    const auto choice = agree_on_recompute(world(), request, limits);
    ASSERT_EQ(choice.size(), 1u);
    EXPECT_LE(bytes_of_rank_0(request, choice), least) << "rank " << poor << " has the least";
    EXPECT_NE(choice[0], RecomputeChoices(request).at({}));
    BuildRequest settled = request;
    settled.recompute = choice;
    world().require_same("schedule", build_schedule(settled).hash());
  }
}

TEST(AgreeOnRecompute, RanksThatKnowNoLimitKeepAll) {
  const BuildRequest request = request_with({"activation.recompute=auto"});
  const auto choice = agree_on_recompute(world(), request, {});
  ASSERT_EQ(choice.size(), 1u);
  EXPECT_TRUE(choice[0].late.dropped.empty());
  EXPECT_EQ(bytes_of_rank_0(request, choice), bytes_of_rank_0(request, {RecomputeChoice{}}));
}

TEST(AgreeOnRecompute, OtherModesLeaveNothingToChoose) {
  for (const char* mode : {"none", "selective", "full"})
    EXPECT_TRUE(agree_on_recompute(world(), request_with({fmt::format("activation.recompute={}", mode)}), {}).empty()) << mode;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::testing::run_tests(argc, argv); }
