// Which nodes are taken to be silent, and when.
#include "supervise/node_probes.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace tessera {
namespace {

using Names = std::vector<std::string>;

TEST(NodeProbes, ANodeIsSilentAfterItsTimeOrLongAfterTheOthers) {
  EXPECT_FALSE(taken_as_silent(9.9, {}, 3, 10)) << "nobody has answered: the scheduler may be busy";
  EXPECT_TRUE(taken_as_silent(10, {}, 3, 10));
  EXPECT_FALSE(taken_as_silent(1.9, std::vector{0.1, 0.2}, 3, 10));
  EXPECT_TRUE(taken_as_silent(2, std::vector{0.1, 0.2}, 3, 10));
  EXPECT_FALSE(taken_as_silent(3.9, std::vector{0.1, 1.0}, 3, 10)) << "answers are slow";
  EXPECT_TRUE(taken_as_silent(4, std::vector{0.1, 1.0}, 3, 10));
  EXPECT_FALSE(taken_as_silent(5, std::vector{0.1}, 3, 10)) << "most of those asked have not answered";
  EXPECT_TRUE(taken_as_silent(1, std::vector{0.1, 0.2}, 3, 1)) << "its own time is shorter";
}

/// A node's name is what is run for it.
NodeProbes probes_that_run(double most) {
  return {[](const std::string& node) {
            if (node == "none") throw Error(ExitCode::environment, "there is no such program");
            return std::make_unique<LauncherProcess>(Names{"sh", "-c", node}, std::vector<std::pair<std::string, std::string>>{}, false);
          },
          most};
}

Names silent_of(NodeProbes& probes, const Names& nodes) {
  PolledSignals signals;
  while (true) {
    if (const auto silent = probes.silent(nodes)) return *silent;
    signals.wait(0.01);
    while (signals.next()) continue;
  }
}

TEST(NodeProbes, SaysWhichNodesDoNotAnswer) {
  NodeProbes probes = probes_that_run(1e6);
  probes.ask({"exit 0", "sleep 1000", "exit 3", "none", "exit 0 # another"});
  EXPECT_EQ(silent_of(probes, {"exit 0", "exit 3", "none"}), (Names{"exit 3", "none"}));
  EXPECT_EQ(silent_of(probes, {"exit 0"}), Names{});
  probes.forget();
  probes.ask({"exit 0", "sleep 1000"});
  EXPECT_EQ(silent_of(probes, {"sleep 1000", "exit 0"}), Names{"sleep 1000"}) << "long after the other";
}

TEST(NodeProbes, MoreNodesThanAreAskedAtOnceAreAllAsked) {
  NodeProbes probes = probes_that_run(1e6);
  Names nodes;
  // Most end badly, so that none is taken as silent for being later than the others on a busy machine.
  for (int i = 0; i < 40; ++i) nodes.push_back("exit " + std::to_string(i % 20 == 7 ? 0 : 1) + " # " + std::to_string(i));
  Names bad = nodes;
  std::erase_if(bad, [](const std::string& node) { return node.starts_with("exit 0"); });
  probes.ask(nodes);
  EXPECT_EQ(bad.size(), 38u);
  EXPECT_EQ(silent_of(probes, nodes), bad);
}

}  // namespace
}  // namespace tessera
