// What a node is made of, from trees that are made up, and what differs between nodes.
#include <gtest/gtest.h>

#include "../scratch.hpp"
#include "report/nodes/compare.hpp"

namespace tessera::nodes_test {
namespace {

/// A system that is as large as a test needs.
struct MadeUpSystem {
  test::Scratch folder;
  NodeRoots roots{folder / "sys", folder / "proc", folder.path()};

  void say(const std::string& path, const std::string& text) const {
    test::fs::create_directories(test::fs::path(folder / path).parent_path());
    test::spill(folder / path, text + "\n");
  }
  MadeUpSystem() {
    say("proc/sys/kernel/osrelease", "6.1.0-18-amd64");
    say("proc/cpuinfo", "processor\t: 0\nmodel name\t: Pretended EPYC\nmicrocode\t: 0xa101148\n\nprocessor\t: 1\nmodel name\t: another");
    say("proc/meminfo", "MemTotal:       1048576 kB\nMemFree:  12 kB\nSwapTotal:             0 kB");
    say("sys/devices/system/cpu/online", "0-63");
    say("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance");
    say("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never");
    say("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "128");
    for (const char* node : {"node0", "node10", "node2"}) say(fmt::format("sys/devices/system/node/{}/cpulist", node), "0-31");
    say("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:  524288 kB\nNode 0 MemFree: 3 kB");
    say("sys/class/net/eth0/speed", "25000"), say("sys/class/net/eth0/operstate", "up"), say("sys/class/net/eth0/mtu", "9000");
    say("sys/class/net/eth0/device/current_link_speed", "8.0 GT/s PCIe"), say("sys/class/net/eth0/device/current_link_width", "8");
    say("sys/class/net/eth0/device/max_link_speed", "16.0 GT/s PCIe"), say("sys/class/net/eth0/device/max_link_width", "16");
    test::fs::create_symlink("../../drivers/mlx5_core", folder / "sys/class/net/eth0/device/driver");
    say("sys/class/net/lo/mtu", "65536");
    say("sys/class/infiniband/mlx5_1/fw_ver", "28.39.1002"), say("sys/class/infiniband/mlx5_1/hca_type", "MT4129");
    say("sys/class/infiniband/mlx5_1/ports/1/rate", "200 Gb/sec (4X HDR)"), say("sys/class/infiniband/mlx5_1/ports/1/state", "4: ACTIVE");
    say("sys/class/nvme/nvme0/model", "Pretended 1.92TB   "), say("sys/class/nvme/nvme0/state", "live");
  }
};

std::string text_of(const std::vector<NodeFact>& facts) {
  std::string text;
  for (const NodeFact& f : facts) text += fmt::format("{}|{}|{}\n", f.thing, f.name, f.value);
  return text;
}

TEST(Nodes, FactsAreReadFromTheSystemsFiles) {
  const MadeUpSystem system;
  std::string text = text_of(system_facts(system.roots));
  const std::size_t shared = text.find("|shared memory");  // of the disk that the test is on
  ASSERT_NE(shared, text.npos) << text;
  text.erase(shared, text.find('\n', shared) + 1 - shared);
  EXPECT_EQ(text, R"(|kernel|6.1.0-18-amd64
|processor|Pretended EPYC
|microcode|0xa101148
|processing units|0-63
|frequency governor|performance
|transparent huge pages|madvise
|memory|1.00 GiB
|reserved pages of 2048kB|128
NUMA memory 0|size|512.00 MiB
NUMA memory 0|near units|0-31
NUMA memory 2|near units|0-31
NUMA memory 10|near units|0-31
eth0|state|up
eth0|speed|25 Gb/s
eth0|MTU|9000
eth0|driver|mlx5_core
eth0|PCIe link|8.0 GT/s PCIe x8 of 16.0 GT/s PCIe x16
mlx5_1|type|MT4129
mlx5_1|firmware|28.39.1002
mlx5_1:1|state|ACTIVE
mlx5_1:1|speed|200 Gb/s (4X HDR)
nvme0|model|Pretended 1.92TB
nvme0|state|live
)");
  EXPECT_TRUE(system_facts({"/nonexistent", "/nonexistent", "/nonexistent"}).empty());
  EXPECT_NE(text_of(process_facts()).find("|limit of open files|"), std::string::npos);
}

TEST(Nodes, FactsAreUnpackedAsTheyWerePacked) {
  const MadeUpSystem system;
  const NodeAround node{"n1", system_facts(system.roots)};
  const NodeAround again = unpack_node(pack(node));
  EXPECT_EQ(again.name, node.name);
  EXPECT_EQ(again.facts, node.facts);
}

std::vector<std::string> said(const std::vector<NodeAround>& nodes) {
  std::vector<std::string> all;
  for (const NodeDifference& d : compare_nodes(nodes)) all.push_back(sentence(d));
  return all;
}

NodeAround node_with(const std::string& name, const std::string& speed, const std::string& kernel = "6.1", double memory = 512) {
  return {name,
          {{"", "kernel", kernel},
           {"", "memory", fmt::format("{}", memory), memory},
           {"mlx5_1", "speed", speed},
           {"mlx5_1", "firmware", "28"}}};
}

TEST(Nodes, TheFewThatDifferAreNamedBesideTheMany) {
  std::vector<NodeAround> nodes;
  for (int n = 1; n <= 64; ++n) nodes.push_back(node_with(fmt::format("n{}", n), n == 17 ? "100 Gb/s" : "200 Gb/s"));
  EXPECT_EQ(said(nodes), std::vector<std::string>{"n17: mlx5_1 runs at 100 Gb/s, 63 nodes at 200 Gb/s"});
  nodes[1].facts[0].value = nodes[2].facts[0].value = "5.10";
  nodes[3].facts[0].value = "";
  EXPECT_EQ(said(nodes), (std::vector<std::string>{"n2, n3: kernel is 5.10, on 61 nodes 6.1", "n4: kernel is none, on 61 nodes 6.1",
                                                   "n17: mlx5_1 runs at 100 Gb/s, 63 nodes at 200 Gb/s"}));
}

TEST(Nodes, NodesThatAreAlikeDifferInNothing) {
  EXPECT_TRUE(said({node_with("n1", "200 Gb/s")}).empty());
  EXPECT_TRUE(said({}).empty());
  EXPECT_TRUE(said({node_with("n1", "200 Gb/s"), node_with("n2", "200 Gb/s", "6.1", 511)}).empty()) << "a size that is nearly the same";
  EXPECT_EQ(said({node_with("n1", "200 Gb/s"), node_with("n2", "200 Gb/s", "6.1", 384)}),
            std::vector<std::string>{"n2: memory is 384, on n1 512"});
}

TEST(Nodes, AnAdapterThatLacksIsOneDifference) {
  std::vector<NodeAround> nodes = {node_with("n1", "200 Gb/s"), node_with("n2", "200 Gb/s"), node_with("n3", "200 Gb/s")};
  std::erase_if(nodes[1].facts, [](const NodeFact& f) { return f.thing == "mlx5_1"; });
  EXPECT_EQ(said(nodes), std::vector<std::string>{"n2: mlx5_1 is missing, 2 nodes have it"});
  nodes[2].facts.push_back({"mlx5_2", "speed", "200 Gb/s"});
  EXPECT_EQ(said(nodes), (std::vector<std::string>{"n2: mlx5_1 is missing, 2 nodes have it", "n3: mlx5_2 is present, 2 nodes lack it"}));
  std::erase_if(nodes[0].facts, [](const NodeFact& f) { return f.name == "firmware"; });
  EXPECT_EQ(said(nodes)[1], "n3: mlx5_1, firmware is 28, on n1 none") << "of two the first one's counts";
}

}  // namespace
}  // namespace tessera::nodes_test
