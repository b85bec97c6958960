// Saves by way of a disk of the node, and shards that share files.
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>

#include "checkpoint_model.hpp"
#include "io/checkpoint/staging.hpp"

namespace tessera::io::staging_test {
namespace {
using namespace test;
namespace fs = std::filesystem;

std::vector<ShardSlice> slices_of_shard(const SmallModel& model, int shard) {
  std::vector<ShardSlice> slices;
  for (auto& [g, s] : slices_of_groups(model.layout, shard)) {
    const std::span<const float> unit = model.values[static_cast<std::size_t>(g)][static_cast<std::size_t>(s.unit)];
    slices.push_back({g, s.unit, unit.subspan(static_cast<std::size_t>(s.begin), static_cast<std::size_t>(s.end - s.begin))});
  }
  return slices;
}

/// Saves as ranks with staging would; their folders on the node's disk are left to the caller.
std::string save_staged(const SmallModel& model, const std::string& root, std::vector<std::unique_ptr<Staging>>& nodes,
                        const std::string& disk) {
  for (int shard = 0; shard < model.layout.shards; ++shard) {
    nodes.push_back(std::make_unique<Staging>(disk, root, shard));
    nodes.back()->write(model.meta.step, model.layout, shard, slices_of_shard(model, shard));
  }
  begin_checkpoint(root, model.meta.step);
  for (int shard = 0; shard < model.layout.shards; ++shard)
    nodes[static_cast<std::size_t>(shard)]->drain(root, model.meta.step, model.layout, shard);
  for (int file = 0; file < file_count(model.layout); ++file) seal_file(root, model.meta.step, model.layout, file);
  write_index(root, model.layout, model.meta);
  commit_checkpoint(root, model.meta.step, {});
  return root + "/" + checkpoint_name(model.meta.step);
}

TEST(Staging, TheCheckpointOfASaveThatWasWaitedFor) {
  for (const std::vector<int>& files : {std::vector<int>(), {0, 0, 1}, {0, 0, 0}}) {
    SmallModel model(3);
    model.layout.files = files;
    Scratch staged, disk;
    {
      std::vector<std::unique_ptr<Staging>> nodes;
      const CheckpointReader saved(save_staged(model, staged.path(), nodes, disk.path()));
      EXPECT_EQ(layout_text(saved.layout()), layout_text(model.layout));
      saved.verify({});
      for (std::size_t g = 0; g < model.layout.groups.size(); ++g)
        for (auto& t : model.layout.tensors) {
          const auto natural = model.tensor(g, t);
          EXPECT_EQ(saved.tensor_hash(model.layout.groups[g], *saved.find(t.name)), hash_bytes(natural.data(), natural.size() * 4).hex());
        }
      for (auto& node : nodes) EXPECT_TRUE(fs::is_empty(node->folder())) << "what was drained stays on the node";
    }
    EXPECT_TRUE(fs::is_empty(disk.path()));
  }
}

TEST(Staging, WhatTheNodesDiskAltersDoesNotBecomeACheckpoint) {
  SmallModel model(1);
  Scratch root, disk;
  const Staging node(disk.path(), root.path(), 0);
  const std::string file = partial_folder(node.folder(), model.meta.step) + "/shard-00000.h5";
  const std::int64_t bytes = [&] {
    node.write(model.meta.step, model.layout, 0, slices_of_shard(model, 0));
    return static_cast<std::int64_t>(fs::file_size(file));
  }();
  for (std::int64_t at : {std::int64_t{20}, std::int64_t{500}, bytes / 4, bytes / 2}) {  // head, directory, data
    node.write(model.meta.step, model.layout, 0, slices_of_shard(model, 0));
    flip_byte(file, at);
    begin_checkpoint(root.path(), model.meta.step);
    EXPECT_HAS(error_of(ExitCode::storage, [&] { node.drain(root.path(), model.meta.step, model.layout, 0); }), "cannot be read back")
        << at;
  }
  fs::remove(file);
  EXPECT_HAS(error_of(ExitCode::storage, [&] { node.drain(root.path(), model.meta.step, model.layout, 0); }), "missing");
}

TEST(Staging, FoldersOfItsOwn) {
  Scratch disk;
  SmallModel model(1);
  std::string folder;
  {
    const Staging a(disk.path(), "/runs/a/checkpoints", 0), b(disk.path(), "/runs/b/checkpoints", 0),
        c(disk.path(), "/runs/a/checkpoints", 1);
    EXPECT_NE(a.folder(), b.folder());
    EXPECT_NE(a.folder(), c.folder());
    folder = a.folder();
  }
  EXPECT_TRUE(fs::is_empty(disk.path()));
  fs::create_directories(folder + "/step-00000003.partial");  // of a start that was killed
  spill(folder + "/step-00000003.partial/shard-00000.h5", "half");
  const Staging again(disk.path(), "/runs/a/checkpoints", 0);
  EXPECT_EQ(again.folder(), folder);
  EXPECT_TRUE(fs::is_empty(folder));
  spill(disk / "file", "");
  EXPECT_HAS(error_of(ExitCode::storage, [&] { Staging(disk / "file", "/runs/a", 0); }), "file (checkpoint.staging): it is not a folder");
  EXPECT_HAS(error_of(ExitCode::storage, [&] { Staging(disk / "none", "/runs/a", 0); }),
             "none (checkpoint.staging): there is no such folder");
}

TEST(Staging, NobodyElseReadsIt) {
  Scratch disk;
  SmallModel model(1);
  const Staging node(disk.path(), "/runs/a/checkpoints", 0);
  node.write(model.meta.step, model.layout, 0, slices_of_shard(model, 0));
  const fs::path shard = partial_folder(node.folder(), model.meta.step) + "/shard-00000.h5";
  EXPECT_EQ(fs::status(shard).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  for (const fs::path& folder : {fs::path(node.folder()), fs::path(node.folder()).parent_path()})
    EXPECT_EQ(fs::status(folder).permissions(), fs::perms::owner_all) << folder;
}

TEST(Staging, WhatIsNotItsOwnIsRefused) {
  const struct {
    const char* what;
    void (*plant)(const fs::path& folder, const std::string& elsewhere);
    const char* reason;
    bool root_only;
  } cases[] = {
      {"a link", [](auto& folder, auto& elsewhere) { fs::create_directory_symlink(elsewhere, folder); }, "a link is there", false},
      {"a file", [](auto& folder, auto&) { spill(folder, "precious"); }, "a file or a link is there", false},
      {"another user's",
       [](auto& folder, auto&) {
         fs::create_directory(folder);
         ASSERT_EQ(::chown(folder.c_str(), 12345, 12345), 0);
       },
       "another user (number 12345)", true},
  };
  for (const bool of_rank : {false, true})
    for (const auto& one : cases) {
      if (one.root_only && ::geteuid() != 0) continue;
      Scratch disk, elsewhere;
      fs::path folder = Staging(disk.path(), "/runs/a/checkpoints", 0).folder();
      if (of_rank)
        fs::create_directories(folder.parent_path());
      else
        folder = folder.parent_path();
      one.plant(folder, elsewhere.path());
      const std::string text = error_of(ExitCode::storage, [&] { Staging(disk.path(), "/runs/a/checkpoints", 0); });
      EXPECT_HAS(text, folder.string() + ": cannot create") << one.what;
      EXPECT_HAS(text, one.reason) << one.what;
      remove_left_staging(disk.path(), "/runs/a/checkpoints");
      EXPECT_TRUE(fs::exists(folder)) << one.what << ": what is not ours stays";
      EXPECT_TRUE(fs::is_empty(elsewhere.path())) << one.what;
    }
}

TEST(Staging, WhatKilledRanksLeftGoes) {
  Scratch disk;
  SmallModel model(1);
  const std::string root = "/runs/a/checkpoints";
  auto living = std::make_unique<Staging>(disk.path(), root, 0);
  const fs::path run = fs::path(living->folder()).parent_path(), left = run / "rank-00003/step-00000001.partial";
  fs::create_directories(left);  // its rank is not of this launch
  spill(left / "shard-00003.h5", "weights");
  living->write(model.meta.step, model.layout, 0, slices_of_shard(model, 0));
  remove_left_staging(disk.path(), root);
  EXPECT_FALSE(fs::exists(run / "rank-00003"));
  EXPECT_TRUE(fs::exists(partial_folder(living->folder(), model.meta.step))) << "of a rank that lives";
  living.reset();
  fs::create_directories(left);
  remove_left_staging(disk.path(), "/runs/b/checkpoints");
  EXPECT_TRUE(fs::exists(left)) << "another run's";
  remove_left_staging(disk.path(), root);
  EXPECT_TRUE(fs::is_empty(disk.path()));
}

TEST(SharedFiles, FewerFilesThanShards) {
  SmallModel model(5);
  model.layout.files = {1, 0, 1, 0, 0};
  Scratch dir;
  const std::string folder = model.save(dir.path());
  int files = 0;
  for (auto& entry : fs::directory_iterator(folder)) files += entry.path().filename().string().starts_with("shard-");
  EXPECT_EQ(files, 2);
  EXPECT_EQ(checkpoint_format(CheckpointReader(folder).layout()), 3);
  fs::remove(folder + "/shard-00001.h5");
  EXPECT_HAS(error_of(ExitCode::checkpoint, [&] { CheckpointReader(folder).require_shards(); }),
             "shard-00001.h5: this shard (1 of 2) is missing");
}

/// A rank that another file system deceives: its part is not in the file that is sealed.
TEST(SharedFiles, APartThatIsNotThereIsFound) {
  SmallModel model(2);
  model.layout.files = {0, 0};
  Scratch dir;
  begin_checkpoint(dir.path(), model.meta.step);
  model.write_one_shard(dir.path(), 0);
  EXPECT_HAS(error_of(ExitCode::storage, [&] { seal_file(dir.path(), model.meta.step, model.layout, 0); }), "same file system");
  begin_checkpoint(dir.path(), model.meta.step);
  model.write_one_shard(dir.path(), 1);  // the first one's place is a hole
  EXPECT_HAS(error_of(ExitCode::storage, [&] { seal_file(dir.path(), model.meta.step, model.layout, 0); }), "same file system");
}

TEST(SharedFiles, WrongNumbersOfFilesAreRefused) {
  SmallModel model(2);
  for (const std::vector<int>& files : {std::vector<int>{0}, {0, 2}, {1, 1}, {-1, 0}}) {
    model.layout.files = files;
    EXPECT_HAS(error_of(ExitCode::internal, [&] { require_layout(model.layout); }), "files");
  }
}

}  // namespace
}  // namespace tessera::io::staging_test
