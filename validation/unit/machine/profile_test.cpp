// Machine profiles: those of inputs/machines, what is refused and how, and that a printed one is read again.
#include "machine/profile.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/check.hpp"
#include "machine/shipped.hpp"

namespace tessera::profile_test {
namespace {

/// The least that a machine is.
const std::string small = R"([machine]
name = "small"
device = "host"
ranks_per_node = 1

[overhead]
task = "1 us"
call = "0 us"

[gemm.fp32]
peak = "100 GFLOP/s"
tokens = [128, 1024]
outputs = [256]
inputs = [256]
forward = ["50 GFLOP/s", "90 GFLOP/s"]
input_gradient = "80 GFLOP/s"
weight_gradient = ["40 GFLOP/s", "70 GFLOP/s"]

[attention.fp32]
tokens = [1024]
head_dim = [64]
forward = "30 GFLOP/s"
backward = ["20 GFLOP/s"]

[kernels.fp32]
bytes = ["1 MiB", "64 MB"]
stream = ["40 GB/s", "20 GB/s"]
swiglu = "15 GB/s"
)";

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const auto at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), by);
}

std::string faults_of(const std::string& text) {
  std::string all;
  for (const Fault& f : parse_machine_text(text, "m.toml").faults) all += f.str() + "\n";
  return all;
}

TEST(Machine, HasRatesOfFloatTypesAlone) {
  const MachineProfile profile;
  EXPECT_EQ(&profile.rates(DType::f32), &profile.fp32);
  EXPECT_EQ(&profile.rates(DType::bf16), &profile.bf16);
  for (const DType other : {DType::i64, DType::u16, DType::u32}) EXPECT_THROW(profile.rates(other), Error);
}

TEST(Machine, HasRatesOfFp16FromWhatComputesIt) {
  MachineProfile profile;
  const MachineProfile& read = profile;
  profile.device = "host";
  EXPECT_EQ(&read.rates(DType::f16), &profile.fp32);
  profile.device = "cuda";
  EXPECT_EQ(&read.rates(DType::f16), &profile.bf16);
  profile.fp16.peak = 1e15;
  EXPECT_EQ(&read.rates(DType::f16), &profile.fp16);
}

TEST(Machine, IsReadWithItsUnits) {
  const ParsedMachine parsed = parse_machine_text(small, "m.toml");
  ASSERT_TRUE(parsed.faults.empty()) << faults_of(small);
  const MachineProfile& p = parsed.profile;
  EXPECT_EQ(p.name, "small");
  EXPECT_DOUBLE_EQ(p.task_overhead, 1e-6);
  EXPECT_DOUBLE_EQ(p.fp32.peak, 1e11);
  EXPECT_FALSE(p.bf16.given());
  EXPECT_DOUBLE_EQ(p.fp32.weight_gradient.seconds_per_unit({1024, 256, 256}), 1 / 70e9);
  EXPECT_DOUBLE_EQ(p.fp32.input_gradient.seconds_per_unit({5, 5, 5}), 1 / 80e9);
  EXPECT_DOUBLE_EQ(p.fp32.kernels.find("stream")->second.seconds_per_unit({1048576}), 1 / 40e9);
  EXPECT_DOUBLE_EQ(p.fp32.kernels.find("swiglu")->second.seconds_per_unit({7}), 1 / 15e9);
  EXPECT_EQ(p.fp32.kernels.size(), 2u);
}

TEST(Machine, ShippedOnesAreFoundByName) {
  const std::vector<std::string_view> names = shipped_machines();
  EXPECT_GE(names.size(), 5u);
  for (const std::string_view name : names) {
    const std::string file = std::string(TESSERA_SOURCE_DIR) + "/inputs/machines/" + std::string(name) + ".toml";
    EXPECT_EQ(print_machine(require_machine(std::string(name))), print_machine(require_machine(file))) << name;
  }
  EXPECT_EQ(print_machine(require_machine("h100")), print_machine(require_machine("h100_8")));
  EXPECT_FALSE(shipped_machine("h")) << "h100_8 and h200_8 begin so";
  EXPECT_FALSE(shipped_machine(""));
  const std::string said = parse_machine("v100").faults.at(0).str();
  EXPECT_NE(said.find("a100_8"), said.npos) << said;
}

TEST(Machine, AllFaultsAreToldAtOnceWithTheirPlaces) {
  std::string text = replaced(small, "ranks_per_node = 1", "ranks_per_nod = 1");
  text = replaced(text, "task = \"1 us\"", "task = 1");
  text = replaced(text, "call = \"0 us\"", "call = \"3 GB\"");
  text = replaced(text, "[128, 1024]", "[1024, 128]");
  text = replaced(text, "forward = \"30 GFLOP/s\"", "forward = \"30\"");
  text = replaced(text, "swiglu", "swigluu");
  text += "\n[colectives.node]\nlatency = \"1 us\"\n";
  EXPECT_EQ(faults_of(text),
            "m.toml:4:1: machine.ranks_per_nod: is not a key of a machine profile; did you mean machine.ranks_per_node?\n"
            "m.toml:7:8: overhead.task: expected text with a unit, got 1; write for example \"4 us\"\n"
            "m.toml:8:8: overhead.call: \"GB\" is not a unit of it; the units are s, ms, us, ns\n"
            "m.toml:12:10: gemm.fp32.tokens: does not rise: list the sizes from the smallest to the largest\n"
            "m.toml:22:11: attention.fp32.forward: \"30\" has no unit; write for example \"989.4 TFLOP/s\"\n"
            "m.toml:28:1: kernels.fp32.swigluu: is not a key of a machine profile; did you mean kernels.fp32.swiglu?\n"
            "m.toml:30:2: colectives: is not a section of a machine profile; did you mean [collectives]?\n");
}

TEST(Machine, WhatIsMissingIsNamed) {
  EXPECT_EQ(
      faults_of(replaced(small, "device = \"host\"\n", "")),
      "m.toml: machine.device: is required and missing: device that ranks compute with: \"cuda\" or \"host\"; add `device = ...` under "
      "[machine]\n");
  const std::string without = faults_of(replaced(small, "[attention.fp32]", "[attention.bf16]"));
  for (const char* key : {"attention.fp32.forward", "gemm.bf16.peak", "kernels.bf16.stream"})
    EXPECT_NE(without.find(key), std::string::npos) << without;
  EXPECT_NE(faults_of(replaced(small, "device = \"host\"", "device = \"cuda\"")).find("machine.device_memory: is missing"),
            std::string::npos);
  EXPECT_NE(faults_of(replaced(small, "ranks_per_node = 1", "ranks_per_node = 2")).find("collectives.node.latency: is missing"),
            std::string::npos);
  EXPECT_NE(faults_of(small + "\n[disk]\nread = \"1 GB/s\"\n").find("disk.write: is required and missing"), std::string::npos);
}

TEST(Machine, NumbersThatContradictEachOtherAreRefused) {
  EXPECT_EQ(faults_of(replaced(small, "\"90 GFLOP/s\"", "\"110 GFLOP/s\"")),
            "m.toml:15:11: gemm.fp32.forward: has a rate of 0.11 TFLOP/s, above gemm.fp32.peak of 0.1 TFLOP/s\n");
  EXPECT_EQ(
      faults_of(replaced(small, "[\"50 GFLOP/s\", \"90 GFLOP/s\"]", "[\"50 GFLOP/s\", \"90 GFLOP/s\", \"1 GFLOP/s\"]")),
      "m.toml:15:11: gemm.fp32.forward: has 3 rates, but tokens x outputs x inputs of this section make 2 sizes: give one each, or one for "
      "all\n");
  EXPECT_NE(faults_of(replaced(small, "\"host\"", "\"tpu\"")).find("it takes \"cuda\", \"host\""), std::string::npos);
  EXPECT_NE(faults_of(replaced(small, "\"80 GFLOP/s\"", "\"0 GFLOP/s\"")).find("out of range"), std::string::npos);
  EXPECT_NE(faults_of(replaced(small, "\"80 GFLOP/s\"", "\"-1 GFLOP/s\"")).find("out of range"), std::string::npos);
  EXPECT_NE(faults_of(replaced(small, "\"80 GFLOP/s\"", "\"nan GFLOP/s\"")).find("out of range"), std::string::npos);
}

TEST(Machine, LossesAreReadAndThoseThatWouldBeGainsRefused) {
  const std::string losses = R"(
[power]
limit = "500 W"
rated = "0.7 kW"
exponent = 0.5
[contention]
compute = 0.2
multiprocessors = 132
second_wave = 0.75
block = "20 GB/s"
[jitter]
ranks = 0.015
[efficiency]
low = 0.7
likely = 0.9
high = 1
[gemm.fp8]
peak = "400 GFLOP/s"
tokens = [128]
outputs = [256]
inputs = [256]
forward = "300 GFLOP/s"
input_gradient = "300 GFLOP/s"
weight_gradient = "300 GFLOP/s"
)";
  const std::string whole = replaced(small, "ranks_per_node = 1", "ranks_per_node = 1\nprice = 2.5") + losses;
  const ParsedMachine parsed = parse_machine_text(whole, "m.toml");
  ASSERT_TRUE(parsed.faults.empty()) << faults_of(whole);
  const MachineProfile& p = parsed.profile;
  EXPECT_DOUBLE_EQ(p.power.slowdown(), std::sqrt(1.4));
  EXPECT_DOUBLE_EQ(p.price, 2.5);
  EXPECT_EQ(p.sharing.multiprocessors, 132);
  EXPECT_DOUBLE_EQ(p.sharing.second_wave, 0.75);
  EXPECT_DOUBLE_EQ(p.sharing.block, 20e9);
  EXPECT_DOUBLE_EQ(p.share_reached(), 0.9);
  EXPECT_DOUBLE_EQ(p.fp8.forward.seconds_per_unit({1, 1, 1}), 1 / 300e9);
  EXPECT_EQ(&p.rates(DType::e4m3), &p.fp8);
  EXPECT_DOUBLE_EQ(MachineProfile{}.share_reached(), 1);
  EXPECT_DOUBLE_EQ(MachineProfile{}.power.slowdown(), 1);
  EXPECT_EQ(print_machine(parse_machine_text(print_machine(p), "printed").profile), print_machine(p));
  const std::pair<std::string, std::string> wrong[] = {{"ranks = 0.015", "ranks = 0"},
                                                       {"ranks = 0.015", "ranks = \"0.015\""},
                                                       {"compute = 0.2", "compute = 1"},
                                                       {"second_wave = 0.75", "second_wave = 1"},
                                                       {"block = \"20 GB/s\"", "block = 20"},
                                                       {"likely = 0.9", "likely = 0.6"},
                                                       {"limit = \"500 W\"", "limit = \"800 W\""},
                                                       {"forward = \"300 GFLOP/s\"\ninput", "forward = \"500 GFLOP/s\"\ninput"},
                                                       {"[gemm.fp8]\npeak = \"400 GFLOP/s\"\n", "[gemm.fp8]\n"}};
  for (const auto& [right, text] : wrong) EXPECT_NE(faults_of(replaced(whole, right, text)), "") << text;
}

TEST(Machine, HostileTextIsRefusedAndDoesNoHarm) {
  for (const std::string text : {"", "x", "= =\n[", "[machine]\nname = [[[1]]]", "machine = 3", "[gemm]\nbf16 = 1", "gemm.bf16.peak.x = 1"})
    EXPECT_FALSE(parse_machine_text(text, "m.toml").faults.empty()) << text;
  EXPECT_THROW(require_machine("/nonexistent/machine.toml"), Error);
}

TEST(Machine, WhatIsPrintedIsReadAgain) {
  for (const std::string name : {"a100_8", "h100_8", "h200_8", "b200_8", "rtx4090_8"}) {
    SCOPED_TRACE(name);
    const MachineProfile p = require_machine(fmt::format("{}/inputs/machines/{}.toml", TESSERA_SOURCE_DIR, name));
    const ParsedMachine again = parse_machine_text(print_machine(p), "printed");
    ASSERT_TRUE(again.faults.empty()) << again.faults.front().str() << "\n" << print_machine(p);
    EXPECT_EQ(print_machine(again.profile), print_machine(p));
    EXPECT_EQ(again.profile.device_memory, p.device_memory);
    EXPECT_NEAR(again.profile.bf16.peak, p.bf16.peak, 1e-4 * p.bf16.peak);
    EXPECT_EQ(again.profile.bf16.attention_backward.rates.size(), p.bf16.attention_backward.rates.size());
  }
}

}  // namespace
}  // namespace tessera::profile_test
