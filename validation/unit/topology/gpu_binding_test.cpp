#include "topology/devices/gpu_binding.hpp"

#include <gtest/gtest.h>

namespace tessera::gpu_binding_test {
namespace {

using Gpus = std::vector<VisibleGpu>;

std::vector<Gpus> everybody(std::size_t ranks, const Gpus& gpus) { return std::vector<Gpus>(ranks, gpus); }

std::vector<std::string> ids(const std::vector<Gpus>& visible) {
  std::vector<std::string> out;
  for (const GpuBinding& gpu : plan_gpu_binding(visible)) out.push_back(gpu.id);
  return out;
}
using Ids = std::vector<std::string>;

TEST(GpuBinding, RanksThatSeeAllGpusTakeThemInOrder) {
  const Gpus four{{"a", "A"}, {"b", "B"}, {"c", "C"}, {"d", "D"}};
  EXPECT_EQ(ids(everybody(4, four)), (Ids{"a", "b", "c", "d"}));
  EXPECT_EQ(ids(everybody(2, four)), (Ids{"a", "b"}));
  const auto plan = plan_gpu_binding(everybody(4, four));
  EXPECT_EQ(plan[2].device, 2);
  EXPECT_EQ(plan[2].sharing, 1);
  EXPECT_EQ(describe(plan[2]), "GPU 2 (C)");
}

TEST(GpuBinding, NearGpusComeFirst) {
  const Gpus first{{"a", "A", false}, {"b", "B", false}, {"c", "C", true}, {"d", "D", true}},
      second{{"a", "A", true}, {"b", "B", true}, {"c", "C", false}, {"d", "D", false}};
  EXPECT_EQ(ids({first, first, second, second}), (Ids{"c", "d", "a", "b"}));
  // Three ranks beside two GPUs: the third takes what is free.
  EXPECT_EQ(ids({first, first, first, second}), (Ids{"c", "d", "b", "a"}));
}

TEST(GpuBinding, AGpuThatTheLauncherLeftIsTaken) {
  // srun --gpus-per-task=1: each rank sees its own as number 0.
  const auto plan = plan_gpu_binding({{{"a", "A"}}, {{"b", "B"}}});
  EXPECT_EQ(plan[1].id, "b");
  EXPECT_EQ(plan[1].device, 0);
  EXPECT_EQ(plan[1].sharing, 1);
  // Whoever has the least choice chooses first.
  EXPECT_EQ(ids({{{"a", "A"}, {"b", "B"}}, {{"a", "A"}}}), (Ids{"b", "a"}));
}

TEST(GpuBinding, TooFewAreSharedEvenly) {
  const Gpus two{{"a", "A"}, {"b", "B"}};
  EXPECT_EQ(ids(everybody(5, two)), (Ids{"a", "b", "a", "b", "a"}));
  const auto plan = plan_gpu_binding(everybody(5, two));
  EXPECT_EQ(plan[0].sharing, 3);
  EXPECT_EQ(plan[1].sharing, 2);
  EXPECT_EQ(describe(plan[0]), "GPU 0 (A), shared by 3 ranks");
}

TEST(GpuBinding, InstancesOfOneGpuAreGpusOnOneBus) {
  const auto plan = plan_gpu_binding(everybody(2, {{"a", "A"}, {"b", "A"}}));
  EXPECT_EQ(plan[1].id, "b");
  EXPECT_EQ(plan[1].sharing, 1);
  EXPECT_TRUE(one_bus_has_several(plan));
  EXPECT_FALSE(one_bus_has_several(plan_gpu_binding(everybody(2, {{"a", "A"}, {"b", "B"}}))));
}

TEST(GpuBinding, WhoSeesNoneHasNone) { EXPECT_EQ(plan_gpu_binding({{}, {{"a", "A"}}})[0].device, -1); }

}  // namespace
}  // namespace tessera::gpu_binding_test
