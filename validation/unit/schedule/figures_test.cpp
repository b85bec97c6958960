// On which figures of a machine profile a step rests: those that its tasks use, and of them those that the profile calls assumed.
#include "schedule/simulate/figures.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "schedule/build/builder.hpp"
#include "schedule/build/request.hpp"

namespace tessera::figures_test {
namespace {

const std::string inputs = std::string(TESSERA_SOURCE_DIR) + "/inputs/";

Figures figures(const MachineProfile& machine, int ranks, std::vector<std::string> overrides = {}) {
  overrides.insert(overrides.begin(), {"run.device=cuda", "model.layers=1", "activation.recompute=none"});
  const Deck deck = require_deck(parse_deck(inputs + "train_7b.toml", overrides, ranks));
  const Mesh mesh = make_mesh(deck, ranks);
  return figures_of(build_schedule(request_for(deck, mesh, 0, Purpose::training)), machine, {.mesh = mesh, .ranks_per_node = 8});
}

bool has(const std::vector<std::string>& keys, const std::string& key) { return std::ranges::find(keys, key) != keys.end(); }

TEST(Figures, AreThoseThatTasksUse) {
  const MachineProfile machine = require_machine(inputs + "machines/h100_8.toml");
  const Figures alone = figures(machine, 1);
  EXPECT_TRUE(has(alone.used, "gemm.bf16.forward") && has(alone.used, "attention.bf16.backward") && has(alone.used, "overhead.task"));
  EXPECT_FALSE(has(alone.used, "gemm.bf16.peak")) << "the yardstick of MFU makes no step longer";
  EXPECT_FALSE(has(alone.used, "gemm.fp32.forward") || has(alone.used, "collectives.node.all_gather") || has(alone.used, "disk.read"));
  const Figures node = figures(machine, 8, {"zero.stage=3"});
  EXPECT_TRUE(has(node.used, "collectives.node.all_gather"));
  EXPECT_FALSE(has(node.used, "collectives.network.bandwidth"));
  EXPECT_TRUE(has(figures(machine, 16, {"zero.stage=3"}).used, "collectives.network.bandwidth"));
}

TEST(Figures, AssumedAreThoseThatTheProfileNames) {
  MachineProfile machine = require_machine(inputs + "machines/h100_8.toml");
  const Figures node = figures(machine, 8, {"zero.stage=3"});
  EXPECT_TRUE(has(node.assumed, "gemm.bf16.forward") && has(node.assumed, "collectives.node.latency"));
  EXPECT_FALSE(has(node.assumed, "collectives.node.all_gather")) << "of nccl-tests";
  EXPECT_NE(describe_assumed(node).find("figures behind this prediction: overhead.task"), std::string::npos) << describe_assumed(node);
  machine.assumed = {"overhead.task"};
  EXPECT_EQ(figures(machine, 1).assumed, std::vector<std::string>{"overhead.task"});
  machine.assumed.clear();
  EXPECT_EQ(describe_assumed(figures(machine, 1)), "") << "a profile that was measured";
}

TEST(Figures, ProfilesNameKeysOrPatternsOfSome) {
  const auto fault = [](const std::string& list) {
    const ParsedMachine parsed = parse_machine_text("[machine]\nassumed = " + list + "\n", "some.toml");
    const auto found = std::ranges::find(parsed.faults, "machine.assumed", &Fault::key);
    return found == parsed.faults.end() ? "" : found->message;
  };
  EXPECT_EQ(fault(R"(["overhead.*", "transfer.latency"])"), "");
  EXPECT_NE(fault(R"(["overhed.*"])").find("\"overhed.*\" is neither a key of a machine profile"), std::string::npos);
  EXPECT_NE(fault(R"("overhead.*")").find("expected a list of keys"), std::string::npos);
  EXPECT_NE(fault("[3]").find("in it"), std::string::npos);
}

}  // namespace
}  // namespace tessera::figures_test
