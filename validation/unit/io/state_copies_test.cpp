// Copies of a run's state in the memory of nodes: files of two starts, of two layouts and of other users are not mixed, and what is cut is
// left out.
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "checkpoint_model.hpp"
#include "io/checkpoint/shard_file.hpp"
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
    const StateCopies& mine = of[static_cast<std::size_t>(rank)];
    ArrivingFile to(mine.shard_path(model.meta.step, kept), from.size(), mine.aside_path(kept));
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

/// What a start would put together of a step's copies is whole to the last byte, and the model's. HDF5 writes down when it made a file, so
/// that bytes of two files are not compared.
void expect_whole(const std::string& run, const SmallModel& model) {
  const std::vector<FoundShard> shards = of_start(find_state_copies(run), "one", model.meta.step);
  std::vector<Hash128> hashes(static_cast<std::size_t>(model.layout.shards));
  for (const FoundShard& s : shards) hashes[static_cast<std::size_t>(s.shard)] = s.hash;
  ASSERT_EQ(shards.size(), 2 * hashes.size()) << "each shard lies twice";
  for (const FoundShard& s : shards) EXPECT_EQ(s.hash, hashes[static_cast<std::size_t>(s.shard)]);
  const std::string folder = put_together_folder(run, "one", 0, model.meta.step);
  put_together(folder, parse_description(find_description(run, "one", model.meta.step), "here"), hashes, shards);
  const CheckpointReader reader(folder);
  for (int shard = 0; shard < model.layout.shards; ++shard)
    ShardFile(folder, model.layout, hash_text(layout_text(model.layout)), shard).verify_structure();
  for (std::size_t g = 0; g < model.layout.groups.size(); ++g)
    for (const auto& t : model.layout.tensors) {
      const auto natural = model.tensor(g, t);
      EXPECT_EQ(reader.tensor_hash(model.layout.groups[g], *reader.find(t.name)), hash_bytes(natural.data(), natural.size() * 4).hex());
    }
  fs::remove_all(fs::path(folder).parent_path());
}
std::map<std::string, ino_t> numbers_of(const fs::path& folder) {
  std::map<std::string, ino_t> numbers;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    struct stat file;
    if (::stat(entry.path().c_str(), &file) == 0) numbers[entry.path().filename().string()] = file.st_ino;
  }
  return numbers;
}

TEST(StateCopies, AreWrittenInTheRoomOfThoseThatWereSetAside) {
  const SmallModel model(2);
  Scratch memory;
  const std::string run = state_copies_folder(memory.path(), "a run");
  const fs::path here = fs::path(run) / "start-one" / "rank-00000", there = fs::path(run) / "start-one" / "rank-00001";
  const StateCopies copies(run, "one", 0);
  copy(model, run, "one");
  // Another name for what no step changes, as a run has it.
  const std::string linked = memory.path() + "/linked.h5";
  fs::create_hard_link(copies.shard_path(model.meta.step, 1), linked);
  const std::string before = read_small_file(linked, ExitCode::storage);
  const auto numbers = numbers_of(partial_folder(here.string(), model.meta.step));
  const auto numbers_there = numbers_of(partial_folder(there.string(), model.meta.step));
  copies.set_aside(model.meta.step);
  EXPECT_EQ(find_state_copies(run).shards.size(), 2u) << "the copies of rank 1";
  StateCopies(run, "one", 1).set_aside(model.meta.step);
  EXPECT_TRUE(find_state_copies(run).shards.empty());

  // Values that leave holes where there were none, and none where there were, in files with longer numbers.
  SmallModel next(2, 1'000'000'000'000);
  for (auto& units : next.values) std::ranges::fill(units.front(), 0.f);
  copy(next, run, "one");
  expect_whole(run, next);
  const auto now = numbers_of(partial_folder(here.string(), next.meta.step));
  EXPECT_EQ(now.at("shard-00000.h5"), numbers.at("shard-00000.h5")) << "its room was not taken";
  EXPECT_NE(now.at("shard-00001.h5"), numbers.at("shard-00001.h5")) << "what has another name was written over";
  EXPECT_EQ(read_small_file(linked, ExitCode::storage), before);
  const auto there_now = numbers_of(partial_folder(there.string(), next.meta.step));
  EXPECT_EQ(there_now.at("shard-00000.h5"), numbers_there.at("shard-00000.h5")) << "what arrived did not take its room";

  // A file of another layout gives no room.
  copies.set_aside(next.meta.step);
  const SmallModel other(3, 1002, 8);
  copy(other, run, "one");
  expect_whole(run, other);

  copies.set_aside(other.meta.step);
  remove_state_copies(run, KeptCopies{.start = "one", .step = other.meta.step, .newer_too = true});
  EXPECT_TRUE(fs::exists(here / "aside")) << "whose run is at work";
  remove_state_copies(run, KeptCopies{.start = "one", .step = other.meta.step});
  EXPECT_FALSE(fs::exists(here / "aside"));
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
  EXPECT_NE(both.find("belongs to another step or shard than its name says"), both.npos) << both;
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
