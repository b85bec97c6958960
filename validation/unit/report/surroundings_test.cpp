#include "report/surroundings.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "../scratch.hpp"
#include "train/device.hpp"

namespace tessera {
namespace {

TEST(Surroundings, HoldVersionsMemoryLimitsDevicesAndDisks) {
  const test::Scratch scratch;
  const Surroundings around = look_around({scratch.path()});
  const auto json = nlohmann::json::parse(surroundings_json(around));
  for (const char* room : {"program", "node", "limits", "devices", "disks"}) EXPECT_TRUE(json.contains(room)) << room;
  for (const char* fact : {"version", "compiler", "MPI", "oneDNN"}) EXPECT_FALSE(json["program"][fact].get<std::string>().empty()) << fact;
  for (const char* fact : {"memory", "processor", "processing units", "huge pages"}) EXPECT_TRUE(json["node"].contains(fact)) << fact;
  for (const char* fact : {"locked memory", "open files", "cores of the control group"}) EXPECT_TRUE(json["limits"].contains(fact)) << fact;
  EXPECT_NE(json["disks"][scratch.path()].get<std::string>().find("free"), std::string::npos);
  const std::string text = print_surroundings(around);
  for (const Fact& fact : around.facts) EXPECT_NE(text.find(fact.value), std::string::npos) << fact.name;
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
}  // namespace tessera
