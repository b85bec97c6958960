// Shipped decks gather at stage 3 before they need: a step that waits at each use loses what its gathers take.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "schedule/build/builder.hpp"
#include "schedule/build/request.hpp"

namespace tessera::prefetch_test {
namespace {

namespace fs = std::filesystem;

/// A shipped deck at stage 3, on as few ranks as share its state and hold its mesh; none where a key of it wants another stage.
std::optional<std::pair<Deck, int>> sharded(const fs::path& path, const std::vector<std::string>& more) {
  std::vector<std::string> overrides = {"zero.stage=3", "zero.param_persistence_threshold=0", "run.device=cuda",
                                        "activation.recompute=none"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  for (const int ranks : {2, 4, 8, 16, 32, 64, 128, 256}) {
    const ParsedDeck parsed = parse_deck(path, overrides, ranks);
    if (parsed.faults.empty() && parsed.deck.mesh.dp * parsed.deck.mesh.ep * parsed.deck.mesh.replicate > 1) return {{parsed.deck, ranks}};
  }
  return std::nullopt;
}

/// Gathers of a section, and those after which no pass runs before the one that reads what they bring.
struct Gathers {
  int all = 0, late = 0;
};
Gathers gathers_of(const Section& section) {
  Gathers found;
  bool first = true;
  for (std::size_t g = 0; g < section.tasks.size(); ++g) {
    const Task& gather = section.tasks[g];
    if (gather.lane != Lane::gather || !gather.name.starts_with("gather ") || gather.name.ends_with("(updated)")) continue;
    if (gather.name.find("matrices of ") != std::string::npos) continue;  // of an update by Muon, which no pass reads
    ++found.all;
    const int copy = gather.uses[0].buffer;
    bool beside = false, read = false;
    for (std::size_t t = g + 1; t < section.tasks.size() && !read; ++t) {
      if (!std::holds_alternative<RunPass>(section.tasks[t].op)) continue;
      read = std::ranges::any_of(section.tasks[t].uses, [&](const Use& use) { return use.buffer == copy && use.bytes > 0; });
      beside |= !read;
    }
    if (!beside && !first) ++found.late;
    first = false;
  }
  return found;
}

Gathers gathers_of(const fs::path& path, const std::vector<std::string>& more) {
  Gathers all;
  const auto deck = sharded(path, more);
  if (!deck) return all;
  const Schedule schedule = build_schedule(request_for(deck->first, make_mesh(deck->first, deck->second), 0, Purpose::training));
  for (const Section& section : schedule.sections) {
    const Gathers of = gathers_of(section);
    all.all += of.all, all.late += of.late;
  }
  return all;
}

TEST(Prefetch, EveryUnitOfAShippedDeckButTheFirstComesBeforeItIsNeeded) {
  int decks = 0;
  for (const auto& entry : fs::directory_iterator(std::string(TESSERA_SOURCE_DIR) + "/inputs")) {
    if (entry.path().extension() != ".toml") continue;
    const Gathers found = gathers_of(entry.path(), {});
    EXPECT_EQ(found.late, 0) << entry.path() << ": of " << found.all << " gathers";
    decks += found.all > 1;
  }
  EXPECT_GE(decks, 8) << "decks that gather";
}

TEST(Prefetch, WithoutItEveryUnitIsWaitedFor) {
  const Gathers found = gathers_of(std::string(TESSERA_SOURCE_DIR) + "/inputs/gpt2_124m.toml", {"zero.prefetch_bucket_size=0"});
  EXPECT_GT(found.late, 10);
}

}  // namespace
}  // namespace tessera::prefetch_test
