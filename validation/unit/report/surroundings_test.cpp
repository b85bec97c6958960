#include "report/surroundings.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include "base/json.hpp"

#include "../scratch.hpp"
#include "report/links.hpp"
#include "train/engine/device.hpp"

namespace tessera::surroundings_test {
namespace {

TEST(Surroundings, HoldVersionsMemoryLimitsDevicesAndDisks) {
  const test::Scratch scratch;
  const Surroundings around = look_around({scratch.path()});
  const auto json = Json::parse(surroundings_json(around));
  for (const char* room : {"program", "node", "limits", "devices", "disks"}) EXPECT_TRUE(json.contains(room)) << room;
  for (const char* fact : {"version", "compiler", "MPI", "oneDNN"}) EXPECT_FALSE(json["program"][fact].get<std::string>().empty()) << fact;
  for (const char* fact : {"memory", "processor", "processing units", "huge pages"}) EXPECT_TRUE(json["node"].contains(fact)) << fact;
  for (const char* fact : {"locked memory", "open files", "cores of the control group"}) EXPECT_TRUE(json["limits"].contains(fact)) << fact;
  EXPECT_NE(json["disks"][scratch.path()].get<std::string>().find("free"), std::string::npos);
  const std::string text = print_surroundings(around);
  for (const Fact& fact : around.facts) EXPECT_NE(text.find(fact.value), std::string::npos) << fact.name;
}

TEST(Surroundings, LinksAreThePhysicalOnes) {
  const test::Scratch sys;
  const auto say = [&](const std::string& path, const char* text) {
    test::fs::create_directories(test::fs::path(sys / path).parent_path());
    test::spill(sys / path, text);
  };
  say("class/net/eth0/device/vendor", "x"), say("class/net/eth0/speed", "10000\n"), say("class/net/eth0/operstate", "up\n");
  say("class/net/eth1/device/vendor", "x"), say("class/net/eth1/speed", "-1\n"), say("class/net/eth1/operstate", "down\n");
  say("class/net/lo/operstate", "unknown\n");
  say("class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n"), say("class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
  std::string text;
  for (const Fact& f : link_facts(sys.path())) text += f.room + " " + f.name + " " + f.value + "\n";
  EXPECT_EQ(text, "links eth0 10 Gb/s, up\nlinks eth1 of unknown speed, down\nlinks mlx5_0:1 400 Gb/sec (4X NDR), ACTIVE\n");
  EXPECT_TRUE(link_facts(sys / "none").empty());
}

TEST(Surroundings, WhatLacksIsToldWithItsFeature) {
  const Surroundings around = look_around({"/nonexistent/folder"});
  const auto of = [&](const std::string& feature) {
    return std::ranges::any_of(around.lacking, [&](const Lack& l) { return l.feature == feature && !l.why.empty(); });
  };
  EXPECT_TRUE(of("spilling to /nonexistent/folder")) << print_surroundings(around);
  if (!has_gpu_backend()) {
    EXPECT_TRUE(of("run.device = \"cuda\""));
  }
  EXPECT_NE(print_surroundings(around).find("not usable"), std::string::npos);
}

}  // namespace
}  // namespace tessera::surroundings_test
