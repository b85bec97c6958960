// Who is named: by rates that are made up, by states of nodes that are, and by rings of pairs.
#include <gtest/gtest.h>

#include "../deck/small_deck.hpp"
#include "../scratch.hpp"
#include "base/json.hpp"
#include "report/preflight/health.hpp"
#include "report/preflight/preflight.hpp"
#include "report/preflight/rings.hpp"

namespace tessera::preflight_test {
namespace {

using Kind = RankMeasureKind;

/// Eight ranks on four nodes, alike in all but what a test changes.
std::vector<RankMeasures> eight_ranks() {
  std::vector<RankMeasures> ranks;
  for (int rank = 0; rank < 8; ++rank)
    ranks.push_back({fmt::format("n{}", rank / 2),
                     {{"product in bf16", Kind::work, 700e12 + rank},
                      {"exchange in a node", Kind::exchange, 40e9},
                      {"all-reduce of all ranks", Kind::all, 20e9},
                      {"write to runs", Kind::disk, 1e9}}});
  return ranks;
}

std::vector<std::string> named(const PreflightJudgement& judgement) {
  std::vector<std::string> all;
  for (const PreflightFinding& f : judgement.findings) all.push_back(f.where + ": " + f.what);
  return all;
}

TEST(Preflight, ARankUnderTheMedianIsNamedWithWhatItReaches) {
  auto ranks = eight_ranks();
  EXPECT_TRUE(judge(ranks, {}).findings.empty());
  ranks[5].measures[0].rate = 0.91 * 700e12;
  EXPECT_TRUE(judge(ranks, {}).findings.empty()) << "9 % are allowed";
  ranks[5].measures[0].rate = 0.8 * 700e12;
  EXPECT_EQ(named(judge(ranks, {})),
            std::vector<std::string>{"rank 5 on n2: product in bf16 at 80 % of the median: 560 TFLOP/s of 700 TFLOP/s"});
  EXPECT_TRUE(judge(ranks, {.slower = 0.25}).findings.empty());
  const MeasureRow row = judge(ranks, {}).rows.front();
  EXPECT_EQ(row.worst, 5);
  EXPECT_NEAR(row.share, 0.8, 1e-3);
}

TEST(Preflight, TheSlowestIsFirstAndRanksOfAHostAreOneLine) {
  auto ranks = eight_ranks();
  ranks[0].measures[0].rate = 0.85 * 700e12;
  ranks[6].measures[1].rate = 4e9, ranks[7].measures[1].rate = 5e9;
  const std::vector<std::string> all = named(judge(ranks, {}));
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0], "ranks 6-7 on n3: exchange in a node at 10 % of the median: 4 GB/s of 40 GB/s");
  EXPECT_TRUE(all[1].starts_with("rank 0 on n0: product in bf16 at 85 %"));
}

TEST(Preflight, DisksHaveALimitOfTheirOwnAndWhatAllDoTogetherIsNobodys) {
  auto ranks = eight_ranks();
  ranks[1].measures[3].rate = 0.6e9;
  ranks[2].measures[2].rate = 1e9;
  EXPECT_TRUE(judge(ranks, {}).findings.empty());
  EXPECT_EQ(judge(ranks, {.slower_disk = 0.3}).findings.size(), 1u);
}

TEST(Preflight, OfTwoRanksTheSlowerOneCanBeTold) {
  auto ranks = eight_ranks();
  ranks.resize(2);
  ranks[0].measures[0].rate = 600e12;
  EXPECT_EQ(judge(ranks, {}).findings.at(0).where, "rank 0 on n0");
}

TEST(Preflight, AFaultIsNamedBeforeWhoIsSlow) {
  auto ranks = eight_ranks();
  ranks[0].measures[0].rate = 1e12;
  for (const int rank : {2, 3}) ranks[static_cast<std::size_t>(rank)].measures[3] = {"write to runs", Kind::disk, 0, "is read-only"};
  PreflightVerdict verdict{.map = "0-7", .nodes = 4, .judgement = judge(ranks, {})};
  for (const RankMeasures& rank : ranks) verdict.hosts.push_back(rank.host);
  EXPECT_EQ(named(verdict.judgement)[0], "ranks 2-3 on n1: write to runs: is read-only");
  EXPECT_EQ(status_of(verdict), 7);
  EXPECT_TRUE(print_verdict(verdict).starts_with("ranks 2-3 on n1: write to runs: is read-only\nrank 0 on n0: product in bf16 at 0 %"));
  const Json json = Json::parse(verdict_json(verdict));
  EXPECT_EQ(json["status"], 7);
  EXPECT_EQ(json["found"][0]["ranks"], Json::parse("[2, 3]"));
  EXPECT_TRUE(json["measures"][3]["rates"][2].is_null());
  EXPECT_EQ(json["measures"][0]["worst"], 0);
}

TEST(Preflight, NodesThatDifferAreAFaultOnlyWhereTheDeckSaysSo) {
  PreflightVerdict verdict{.map = "0-1", .nodes = 2};
  EXPECT_EQ(status_of(verdict), 0);
  EXPECT_TRUE(print_verdict(verdict).starts_with("no fault was found\n"));
  verdict.differences = {{{"mlx5_1", "speed", "100 Gb/s"}, {"n2"}, "200 Gb/s", {"n1", "n3"}}};
  EXPECT_EQ(status_of(verdict), 0);
  EXPECT_NE(print_verdict(verdict).find("nodes that differ\n  n2: mlx5_1 runs at 100 Gb/s, 2 nodes at 200 Gb/s\n"), std::string::npos);
  verdict.differences_count = true;
  EXPECT_EQ(status_of(verdict), 6);
  EXPECT_EQ(headline(verdict), "n2: mlx5_1 runs at 100 Gb/s, 2 nodes at 200 Gb/s");
}

TEST(Preflight, TheFasterOfTwoPassesCountsAndEveryFault) {
  const RankMeasures first{"n0", {{"a", Kind::work, 5}, {"b", Kind::disk, 7}}};
  const RankMeasures both = faster_of(first, {"n0", {{"a", Kind::work, 6}, {"b", Kind::disk, 1, "broken"}, {"c", Kind::work, 1}}});
  EXPECT_EQ(both.measures.at(0).rate, 6);
  EXPECT_EQ(both.measures.at(1).rate, 7);
  EXPECT_EQ(both.measures.at(1).fault, "broken");
  EXPECT_EQ(both.measures.size(), 3u);
  EXPECT_EQ(unpack_measures(pack(both)).measures.at(1).fault, "broken");
}

TEST(Preflight, EachPairOfARingMeetsOnceAndNobodyMeetsTwoAtATime) {
  for (int size = 1; size <= 9; ++size) {
    std::vector<int> ring;
    for (int i = 0; i < size; ++i) ring.push_back(3 * i);
    int meetings = 0;
    for (const int rank : ring)
      for (std::size_t round = 0; round < most_ring_rounds; ++round) {
        const int other = partners_in_ring(ring, rank)[round];
        if (other < 0) continue;
        EXPECT_EQ(partners_in_ring(ring, other)[round], rank) << size;
        ++meetings;
      }
    EXPECT_EQ(meetings / 2, size < 2 ? 0 : size == 2 ? 1 : size);
  }
  // Three nodes, of which one has a rank less.
  const std::vector<int> nodes = {0, 0, 1, 2, 2};
  EXPECT_EQ(rings_of(nodes, 1).inside, (std::vector<int>{0, 1}));
  EXPECT_EQ(rings_of(nodes, 1).across, (std::vector<int>{1, 4}));
  EXPECT_EQ(rings_of(nodes, 2).across, (std::vector<int>{0, 2, 3}));
}

TEST(Preflight, HealthIsReadFromTheSystemsCounters) {
  const test::Scratch folder;
  const NodeRoots roots{folder / "sys", folder / "proc", "/dev/shm"};
  const auto say = [&](const std::string& path, const std::string& text) {
    test::fs::create_directories(test::fs::path(folder / ("sys/" + path)).parent_path());
    test::spill(folder / ("sys/" + path), text + "\n");
  };
  const auto found = [&](const NodeHealth& before, const PreflightKeys& keys = {}) {
    std::vector<std::string> all;
    for (const PreflightFinding& f : judge_health("n1", before, read_health(roots), keys)) all.push_back(f.where + ": " + f.what);
    return all;
  };
  EXPECT_TRUE(found(read_health(roots)).empty()) << "nothing is there";
  for (const char* cpu : {"cpu0", "cpu1"}) {
    say(fmt::format("devices/system/cpu/{}/thermal_throttle/core_throttle_count", cpu), "3");
    say(fmt::format("devices/system/cpu/{}/thermal_throttle/package_throttle_count", cpu), "10");
  }
  say("devices/system/edac/mc/mc0/ce_count", "90"), say("devices/system/edac/mc/mc0/ue_count", "0");
  say("devices/system/edac/mc/mc1/ce_count", "9"), say("devices/system/edac/mc/mc1/ue_count", "0");
  say("class/hwmon/hwmon0/name", "coretemp"), say("class/hwmon/hwmon0/temp1_input", "71000"),
      say("class/hwmon/hwmon0/temp1_label", "Package 0");
  say("class/thermal/thermal_zone0/type", "acpitz"), say("class/thermal/thermal_zone0/temp", "-274000");
  say("class/nvme/nvme0/state", "live");
  const NodeHealth before = read_health(roots);
  EXPECT_EQ(before.throttled, 16);
  EXPECT_TRUE(found(before).empty());
  EXPECT_EQ(found(before, {.temperature = 70}), std::vector<std::string>{"n1: coretemp Package 0 is at 71 degrees, above 70"});
  EXPECT_TRUE(found(before, {.temperature = 0}).empty());
  say("devices/system/cpu/cpu1/thermal_throttle/core_throttle_count", "8");
  say("devices/system/edac/mc/mc1/ce_count", "11"), say("devices/system/edac/mc/mc1/ue_count", "1");
  say("class/nvme/nvme1/state", "dead");
  EXPECT_EQ(found(before),
            (std::vector<std::string>{"n1: memory had 1 error that could not be corrected: have it replaced",
                                      "n1: memory has corrected 101 errors: it is wearing out", "n1: the disk nvme1 is dead",
                                      "n1: processors were slowed down by heat 5 times during the measurement: look at its cooling"}));
  EXPECT_EQ(found(before, {.throttled = 5, .mended_errors = 101, .memory_errors = 1}).size(), 1u) << "the disk";
}

TEST(Preflight, KeysThatNoDeckGivesAreThoseOfTheCommandWithoutOne) { EXPECT_EQ(parse_small().deck.preflight, PreflightKeys{}); }

TEST(Preflight, TriesTheFoldersThatARunOfTheDeckWritesTo) {
  const test::Scratch scratch;
  const std::string disks = scratch / "a:" + (scratch / "b");
  test::fs::create_directory(scratch / "local");
  const Deck deck = parse_small({"run.output_dir=" + (scratch / "runs/x"), "checkpoint.staging=" + (scratch / "local/new"), "zero.stage=2",
                                 "zero.offload_optimizer.device=nvme", "zero.offload_optimizer.nvme_path=" + disks})
                        .deck;
  EXPECT_EQ(folders_of(deck), (std::vector<std::string>{scratch.path(), scratch / "local", scratch / "a", scratch / "b"}));
  EXPECT_EQ(folders_of(parse_small({"run.output_dir=no/such"}).deck), std::vector<std::string>{"."});
}

}  // namespace
}  // namespace tessera::preflight_test
