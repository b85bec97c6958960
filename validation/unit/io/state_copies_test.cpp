// Copies of a run's state in the memory of nodes: files of two starts, of two layouts and of other users are not mixed, and what is cut is
// left out.
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <filesystem>

#include "checkpoint_model.hpp"
#include "io/checkpoint/state_copies.hpp"

namespace tessera::io::state_copies_test {
namespace {
using namespace test;
namespace fs = std::filesystem;

/// As so many ranks would copy a step, each keeping what the next one has too.
void copy(const SmallModel& model, const std::string& run, const std::string& start) {
  const int ranks = model.layout.shards;
  std::vector<StateCopies> of;
  for (int rank = 0; rank < ranks; ++rank) {
    of.emplace_back(run, start, rank);
    of.back().begin(model.meta.step);
    std::vector<ShardSlice> slices;
    for (auto& [g, s] : slices_of_groups(model.layout, rank)) {
      const std::span<const float> unit = model.values[static_cast<std::size_t>(g)][static_cast<std::size_t>(s.unit)];
      slices.push_back({g, s.unit, unit.subspan(static_cast<std::size_t>(s.begin), static_cast<std::size_t>(s.end - s.begin))});
    }
    of.back().write(model.meta.step, model.layout, rank, slices);
  }
  of[0].describe(model.meta, model.layout);
  for (int rank = 0; rank < ranks; ++rank) {
    const int kept = (rank + 1) % ranks;
    const auto from = PosixFile::open(of[static_cast<std::size_t>(kept)].shard_path(model.meta.step, kept), ExitCode::storage);
    std::vector<std::byte> bytes(static_cast<std::size_t>(from.size()));
    from.read(0, bytes.data(), bytes.size());
    ArrivingFile to(of[static_cast<std::size_t>(rank)].shard_path(model.meta.step, kept), from.size());
    to.write(0, bytes);
    to.stands();
  }
}

std::vector<FoundShard> of_start(const FoundCopies& found, const std::string& start, std::int64_t step) {
  std::vector<FoundShard> shards;
  for (const FoundShard& s : found.shards)
    if (s.start == start && s.step == step) shards.push_back(s);
  return shards;
}

TEST(StateCopies, WhatIsPutTogetherIsTheCheckpoint) {
  const SmallModel model(3);
  Scratch memory;
  const std::string run = state_copies_folder(memory.path(), "a run");
  copy(model, run, "one");
  copy(SmallModel(3, 1001), run, "one");
  copy(SmallModel(2, 1000, 8), run, "another");
  const FoundCopies found = find_state_copies(run);
  EXPECT_TRUE(found.faults.empty());
  EXPECT_EQ(found.shards.size(), 6u + 6u + 4u);
  const std::vector<FoundShard> shards = of_start(found, "one", model.meta.step);
  ASSERT_EQ(shards.size(), 6u);
  const DescribedCopies described = parse_description(find_description(run, "one", model.meta.step), "here");
  EXPECT_EQ(layout_text(described.layout), layout_text(model.layout));
  EXPECT_EQ(described.meta.values, model.meta.values);
  EXPECT_EQ(described.meta.deck, model.meta.deck);
  std::vector<Hash128> hashes(3);
  for (const FoundShard& s : shards) {
    EXPECT_EQ(s.layout, hash_text(layout_text(model.layout)));
    hashes[static_cast<std::size_t>(s.shard)] = s.hash;
  }
  const std::string folder = put_together_folder(run, "one", 0, model.meta.step);
  put_together(folder, described, hashes, shards);
  const CheckpointReader reader(folder);
  EXPECT_EQ(reader.meta().step, model.meta.step);
  for (std::size_t g = 0; g < model.layout.groups.size(); ++g)
    for (auto& t : model.layout.tensors) {
      const auto natural = model.tensor(g, t);
      EXPECT_EQ(reader.tensor_hash(model.layout.groups[g], *reader.find(t.name)), hash_bytes(natural.data(), natural.size() * 4).hex());
    }
  // What would be read is noted, with no shard at hand.
  for (int shard = 0; shard < 3; ++shard) fs::remove(folder + "/" + shard_file(shard));
  CheckpointReader noting(folder);
  std::set<int> files;
  noting.only_note(files);
  std::vector<float> some(5003, 1.f);
  noting.read_unit("adam_m", 1, 0, std::span(some).first(1000));
  EXPECT_EQ(files, std::set<int>{0});
  EXPECT_EQ(some[0], 0.f);
  noting.read_unit("adam_m", 1, 0, some);
  EXPECT_EQ(files, (std::set<int>{0, 1, 2}));

  remove_state_copies(run, KeptCopies{.start = "one", .step = 1001});
  EXPECT_EQ(find_state_copies(run).shards.size(), 6u);
  EXPECT_FALSE(fs::exists(fs::path(folder).parent_path()));
  remove_state_copies(run);
  EXPECT_TRUE(fs::is_empty(memory.path()));
}

TEST(StateCopies, WhatIsCutOrRenamedIsLeftOutByName) {
  const SmallModel model(2);
  Scratch memory;
  const std::string run = state_copies_folder(memory.path(), "a run");
  copy(model, run, "one");
  const std::vector<FoundShard> whole = find_state_copies(run).shards;
  ASSERT_EQ(whole.size(), 4u);
  fs::resize_file(whole[0].path, static_cast<std::uintmax_t>(whole[0].bytes - 1));
  fs::rename(whole[1].path, fs::path(whole[1].path).parent_path() / "shard-00007.h5");
  const FoundCopies found = find_state_copies(run);
  EXPECT_EQ(found.shards.size(), 2u);
  ASSERT_EQ(found.faults.size(), 2u);
  const std::string both = found.faults[0] + found.faults[1];
  EXPECT_NE(both.find("is truncated"), both.npos) << both;
  EXPECT_NE(both.find("of another step or shard than its name says"), both.npos) << both;
  // A description that a kill has cut is none.
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(run))
    if (entry.path().filename() == "state.json") fs::resize_file(entry.path(), 100);
  EXPECT_EQ(find_description(run, "one", model.meta.step), "");
}

TEST(StateCopies, AStrangersFolderIsRefusedByName) {
  Scratch memory;
  const std::string run = state_copies_folder(memory.path(), "a run");
  EXPECT_NE(run, state_copies_folder(memory.path(), "another run"));
  fs::create_directory_symlink(memory.path(), run);
  try {
    StateCopies(run, "one", 0);
    FAIL() << "a link was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ExitCode::storage);
    EXPECT_NE(std::string(error.what()).find(run), std::string::npos) << error.what();
  }
  EXPECT_TRUE(find_state_copies(run).shards.empty());
  remove_state_copies(run);
  EXPECT_TRUE(fs::is_symlink(run));
  fs::remove(run);
  const StateCopies mine(run, "one", 0);
  struct stat folder;
  ASSERT_EQ(::stat(run.c_str(), &folder), 0);
  EXPECT_EQ(folder.st_mode & 0777, 0700u);
}

}  // namespace
}  // namespace tessera::io::state_copies_test
