// Damage: every fault is an Error that names the file and the place, and no file, however broken, crashes the reader.
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <functional>

#include <cmath>
#include <limits>

#include "../altered_checkpoint.hpp"
#include "../sample.hpp"
#include "checkpoint_model.hpp"

namespace tessera::io::test::checkpoint_faults_test {
namespace {

class Damage : public testing::Test {
 protected:
  Damage() : model(2) { folder = model.save(dir.path()); }
  std::string error() {
    return error_of(ExitCode::checkpoint, [&] { CheckpointReader(folder).verify({}); });
  }
  Scratch dir;
  SmallModel model;
  std::string folder;
};

TEST_F(Damage, NothingThere) {
  EXPECT_HAS(error_of(ExitCode::checkpoint, [&] { CheckpointReader r(dir / "no-such"); }), "no such checkpoint");
  // A folder of checkpoints says which one to use.
  EXPECT_HAS(error_of(ExitCode::checkpoint, [&] { CheckpointReader r(dir.path()); }), "use " + folder);
  fs::remove(folder + "/checkpoint.h5");
  EXPECT_HAS(error(), "checkpoint.h5 is missing");
}

constexpr float no_numbers[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                                -std::numeric_limits<float>::infinity()};

// The first and last element of each unit and group, and one in the middle of a later block.
TEST(NotFinite, IsNotSavedWhereverItStands) {
  for (const int shards : {1, 3})
    for (const float value : no_numbers)
      for (std::size_t g = 0; g < 2; ++g)
        for (const auto& [unit, element] :
             {std::pair{0, 16}, std::pair{0, 299000}, std::pair{0, 300006}, std::pair{1, 4050}, std::pair{1, 5002}, std::pair{2, 2}}) {
          const Scratch dir;
          SmallModel model(shards);
          model.values[g][static_cast<std::size_t>(unit)][static_cast<std::size_t>(element)] = value;
          const std::string text = error_of(ExitCode::numerics, [&] { model.save(dir.path()); });
          EXPECT_HAS(text, "step 1000");
          EXPECT_HAS(text, model.layout.groups[g] + " of ");
          EXPECT_HAS(text, std::isnan(value) ? "is nan" : "inf");
          if (unit == 1) {
            EXPECT_HAS(text, element == 4050 ? "layers.0.norm, element 50 of the tensor" : "layers.0.scale, element 0");
          }
          EXPECT_FALSE(fs::exists(dir / "latest"));
        }
}

// Older programs have saved such; and the largest number is one.
TEST_F(Damage, WhatIsNoNumberIsNamed) {
  tessera::test::alter_checkpoint(folder, "adam_m", 1, 4050, std::numeric_limits<float>::max());
  CheckpointReader(folder).verify({});
  for (const float value : no_numbers) {
    tessera::test::alter_checkpoint(folder, "adam_m", 1, 4050, value);
    const std::string text = error();
    EXPECT_HAS(text, "adam_m of layers.0.norm, element 50 of the tensor, is ");
    EXPECT_HAS(text, "older checkpoint");
  }
}

TEST_F(Damage, MissingShard) {
  fs::remove(folder + "/shard-00001.h5");
  auto text = error();
  EXPECT_HAS(text, "shard-00001.h5");
  EXPECT_HAS(text, "missing");
  // What the other shard holds can still be read.
  CheckpointReader r(folder);
  std::vector<float> out(5);
  r.read_unit("master", 1, 0, out);
  EXPECT_TRUE(std::equal(out.begin(), out.end(), model.values[0][1].begin()));
}

/// What a run removes under a reader (checkpoint.keep) is no damage, whatever is being read of it.
TEST_F(Damage, WhatItsRunRemovesIsGone) {
  const std::string latest = dir / "latest";
  std::vector<float> out(5);
  const std::vector<std::function<void(const CheckpointReader&)>> reads{
      [](const CheckpointReader& r) { r.verify({}); }, [](const CheckpointReader& r) { r.require_shards(); },
      [&](const CheckpointReader& r) { r.read_unit("master", 1, 0, out); },
      [&](const CheckpointReader& r) { r.read("master", *r.find("head.bias"), 0, std::span(out).first(3)); }};
  std::int64_t step = 1000;
  for (const auto& read : reads) {
    const std::string before = dir / checkpoint_name(step);
    ++step;
    const SmallModel next(2, step, static_cast<std::uint32_t>(step));
    const auto save_next = [&] { next.save(dir.path(), 1); };
    int calls = 0;
    ::testing::internal::CaptureStderr();
    read_checkpoint(latest, [&](const CheckpointReader& r) {
      if (++calls == 1) save_next();
      EXPECT_EQ(r.gone(), calls == 1);
      read(r);
      EXPECT_EQ(r.meta().step, step) << "the next one, from its first value to its last";
    });
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(calls, 2);
    EXPECT_HAS(said, before + ": it was removed or replaced while it was read");
    EXPECT_HAS(said, "Continues with the checkpoint that " + latest + " links to now");
  }
  // One that is asked for by its name has no next one.
  const SmallModel next(2, step + 1);
  const auto text = error_of(ExitCode::checkpoint, [&] {
    read_checkpoint(dir / checkpoint_name(step), [&](const CheckpointReader& r) {
      next.save(dir.path(), 1);
      r.verify({});
    });
  });
  EXPECT_HAS(text, "checkpoint.keep");
  EXPECT_EQ(text.find("Restore"), text.npos) << text;
}

TEST_F(Damage, TruncatedShard) {
  auto path = folder + "/shard-00000.h5";
  for (std::uintmax_t size : {fs::file_size(path) - 1, fs::file_size(path) / 2, std::uintmax_t{100}, std::uintmax_t{0}}) {
    fs::resize_file(path, size);
    auto text = error();
    EXPECT_HAS(text, "shard-00000.h5");
    EXPECT_TRUE(text.find("truncated") != std::string::npos || text.find("empty") != std::string::npos ||
                text.find("damaged") != std::string::npos)
        << text;
  }
}

TEST_F(Damage, FlippedDataByteIsNamed) {
  auto path = folder + "/shard-00001.h5";
  auto bytes = slurp(path);
  // Element 4050 of layers.0 lies in layers.0.norm; shard 1 holds it.
  float value = model.values[1][1][4050];
  auto at = bytes.find(std::string(reinterpret_cast<const char*>(&model.values[1][1][4048]), 16));
  ASSERT_NE(at, std::string::npos);
  ASSERT_EQ(std::memcmp(bytes.data() + at + 8, &value, 4), 0);
  flip_byte(path, static_cast<std::int64_t>(at) + 8);
  CheckpointReader r(folder);
  std::vector<float> out(97);
  auto text = error_of(ExitCode::checkpoint, [&] { r.read("adam_m", *r.find("layers.0.norm"), 0, out); });
  EXPECT_HAS(text, "shard-00001.h5");
  EXPECT_HAS(text, "/adam_m/layers.0");
  EXPECT_HAS(text, "elements [2501, 5003)");
  EXPECT_HAS(text, "layers.0.norm");
  EXPECT_HAS(text, "checksum");
  r.read("master", *r.find("layers.0.norm"), 0, out);  // the other group is untouched
  EXPECT_EQ(out, model.tensor(0, *r.find("layers.0.norm")));
  EXPECT_HAS(error(), "/adam_m/layers.0");
}

TEST_F(Damage, WrongFormatVersion) {
  auto bytes = slurp(folder + "/checkpoint.h5");
  auto at = bytes.find("format 1");
  ASSERT_NE(at, std::string::npos);
  bytes[at + 7] = '5';
  spill(folder + "/checkpoint.h5", bytes);
  EXPECT_HAS(error(), "checkpoint format 5 cannot be read by this Tessera (1 to 4)");
  bytes[at + 7] = '2';
  spill(folder + "/checkpoint.h5", bytes);
  EXPECT_HAS(error(), "its first line says format 2, but its layout is of format 1: it was altered");
  bytes[at + 7] = '1';
  spill(folder + "/checkpoint.h5", bytes);
  auto shard = slurp(folder + "/shard-00001.h5");
  shard[shard.find("format 1") + 7] = '2';
  spill(folder + "/shard-00001.h5", shard);
  EXPECT_HAS(error(), "shard-00001.h5: its slices do not fit the layout");
}

TEST_F(Damage, MixedCheckpoints) {
  SmallModel other(2, 1000, 99);  // same step and layout, other values
  Scratch elsewhere;
  fs::copy_file(other.save(elsewhere.path()) + "/shard-00001.h5", folder + "/shard-00001.h5", fs::copy_options::overwrite_existing);
  EXPECT_HAS(error(), "mixed");
  fs::copy_file(folder + "/shard-00000.h5", folder + "/shard-00001.h5", fs::copy_options::overwrite_existing);
  EXPECT_HAS(error(), "shard-00001.h5");
  spill(folder + "/shard-00001.h5", "not a checkpoint at all");
  EXPECT_HAS(error(), "not a Tessera checkpoint shard");
}

TEST_F(Damage, UnknownGroup) {
  CheckpointReader r(folder);
  std::vector<float> out(1);
  EXPECT_HAS(error_of(ExitCode::checkpoint, [&] { r.read_unit("adam_v", 0, 0, out); }), "no group 'adam_v', only master, adam_m");
}

/// Units of many blocks go in several pieces at a time: the values and the block that is named stay right.
TEST(LargeUnit, ManyBlocks) {
  Scratch dir;
  CheckpointLayout layout{{{"big", 21 * hash_block + 77}}, {{"w", {21 * hash_block + 77}, 0, 0}}, {"master"}, 1};
  auto values = random_values(layout.units[0].elements, 5);
  ShardSlice slice{0, 0, std::span<const float>(values)};
  begin_checkpoint(dir.path(), 1);
  write_shard(dir.path(), 1, layout, 0, {&slice, 1});
  write_index(dir.path(), layout, {1, 0, 0, "", "", ""});
  commit_checkpoint(dir.path(), 1, {});
  auto read_from = [&](std::int64_t begin) {
    std::vector<float> out(values.size() - static_cast<std::size_t>(begin));
    CheckpointReader(dir / "latest").read_unit("master", 0, begin, out);
    return std::equal(out.begin(), out.end(), values.begin() + begin);
  };
  for (std::int64_t begin : {std::int64_t{0}, std::int64_t{1}, hash_block, 3 * hash_block + 11, 21 * hash_block})
    EXPECT_TRUE(read_from(begin));
  auto path = dir / "latest/shard-00000.h5", bytes = slurp(path);
  auto data = bytes.find(std::string(reinterpret_cast<const char*>(values.data()), 32));
  ASSERT_NE(data, std::string::npos);
  for (std::int64_t block : {0, 17, 21}) {
    auto at = static_cast<std::int64_t>(data) + (block * hash_block + 70) * 4;
    flip_byte(path, at);
    auto text = error_of(ExitCode::checkpoint, [&] { read_from(0); });
    EXPECT_HAS(text, fmt::format("/master/big, elements [{},", block * hash_block));
    EXPECT_HAS(error_of(ExitCode::checkpoint, [&] { CheckpointReader(dir / "latest").verify({}); }), "do not match their checksum");
    flip_byte(path, at);
  }
}

/// An export asks for blocks in order, in parts that end in none of them, and now and then for something else.
TEST(LargeUnit, InOrder) {
  Scratch dir;
  const std::int64_t elements = 11 * hash_block + 77;
  CheckpointLayout layout{{{"a", elements}, {"b", elements}}, {{"w", {elements}, 0, 0}, {"v", {elements}, 1, 0}}, {"master"}, 2};
  layout.units[1].holders = {1};
  const std::vector<float> values[] = {random_values(elements, 5), random_values(elements, 6)};
  begin_checkpoint(dir.path(), 1);
  for (int shard : {0, 1}) {
    std::vector<ShardSlice> slices;
    for (auto& [g, s] : slices_of_groups(layout, shard))
      slices.push_back(
          {g, s.unit,
           std::span<const float>(values[s.unit]).subspan(static_cast<std::size_t>(s.begin), static_cast<std::size_t>(s.end - s.begin))});
    write_shard(dir.path(), 1, layout, shard, slices);
  }
  write_index(dir.path(), layout, {1, 0, 0, "", "", ""});
  commit_checkpoint(dir.path(), 1, {});
  const CheckpointReader reader(dir / "latest");
  const auto is_right = [&](int unit, std::int64_t begin, std::int64_t n) {
    std::vector<float> out(static_cast<std::size_t>(std::min(n, elements - begin)));
    reader.read_unit("master", unit, begin, out);
    return std::equal(out.begin(), out.end(), values[unit].begin() + begin);
  };
  for (std::int64_t at = 3, other = 0; at < elements; at += 200'003) {
    EXPECT_TRUE(is_right(0, at, 200'003)) << at;
    if (at % 5 == 0) other += 90'001;
    EXPECT_TRUE(is_right(1, other, at % 5 == 0 ? 50'000 : 0)) << at;
  }
  for (std::int64_t at = 1; at < elements; at += 100'003) EXPECT_TRUE(is_right(1, at, 100'003)) << at;
  // A damaged block stops nobody before it, and nobody after it either.
  const std::string path = dir / "latest/shard-00001.h5", bytes = slurp(path);
  const auto data = bytes.find(std::string(reinterpret_cast<const char*>(values[1].data()), 32));
  ASSERT_NE(data, std::string::npos);
  const std::int64_t damaged = 7 * hash_block;
  flip_byte(path, static_cast<std::int64_t>(data) + 4 * damaged);
  std::int64_t at = 0;
  for (; at + 100'003 <= 4 * hash_block; at += 100'003) EXPECT_TRUE(is_right(1, at, 100'003)) << at;
  const auto text = error_of(ExitCode::checkpoint, [&] {
    for (; at < elements; at += 100'003) is_right(1, at, 100'003);
  });
  EXPECT_HAS(text, fmt::format("/master/b, elements [{},", damaged));
  EXPECT_LE(at, damaged);
  EXPECT_TRUE(is_right(1, 8 * hash_block, elements));
  flip_byte(path, static_cast<std::int64_t>(data) + 4 * damaged);
  for (; at < elements; at += 100'003) EXPECT_TRUE(is_right(1, at, 100'003)) << at;
}

/// Any flip anywhere is found by verify; without verify, values are right or refused.
TEST_F(Damage, RandomFlips) {
  std::mt19937_64 engine(11 + tessera::test::Sample::seed());
  for (std::string file : {"checkpoint.h5", "shard-00000.h5"}) {
    auto path = folder + "/" + file;
    auto size = static_cast<std::int64_t>(fs::file_size(path));
    for (int i = 0, flips = tessera::test::Sample::cases(60, 300); i < flips; ++i) {
      // Every other one in the head and the metadata, where the structure is.
      auto at = static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(i % 2 ? size : std::min<std::int64_t>(size, 16384)));
      flip_byte(path, at);
      EXPECT_HAS(error_of(ExitCode::checkpoint, [&] { CheckpointReader(folder).verify({}); }), file) << " byte " << at;
      try {
        CheckpointReader r(folder);
        auto& t = r.layout().tensors[engine() % r.layout().tensors.size()];
        std::vector<float> out(static_cast<std::size_t>(t.shape.elements()));
        r.read("master", t, 0, out);
        EXPECT_EQ(out, model.tensor(0, t));
      } catch (const Error& e) {
        EXPECT_EQ(e.code, ExitCode::checkpoint);
      }
      flip_byte(path, at);
    }
  }
  CheckpointReader(folder).verify({});
}

/// Ranks share a verification: together they read every byte.
TEST_F(Damage, PartsOfAVerification) {
  std::mt19937_64 engine(13 + tessera::test::Sample::seed());
  for (std::string file : {"checkpoint.h5", "shard-00000.h5", "shard-00001.h5"}) {
    auto path = folder + "/" + file;
    for (int i = 0, flips = tessera::test::Sample::cases(10, 40); i < flips; ++i) {
      auto at = static_cast<std::int64_t>(engine() % fs::file_size(path));
      flip_byte(path, at);
      int found = 0;
      for (int part = 0; part < 3; ++part) try {
          CheckpointReader(folder).verify({}, part, 3);
        } catch (const Error& error) {
          EXPECT_HAS(std::string(error.what()), file);
          ++found;
        }
      EXPECT_GE(found, 1) << file << " byte " << at;
      flip_byte(path, at);
    }
  }
  for (int part = 0; part < 3; ++part) CheckpointReader(folder).verify({}, part, 3);
}

TEST_F(Damage, RandomTruncations) {
  std::mt19937_64 engine(12 + tessera::test::Sample::seed());
  for (std::string file : {"checkpoint.h5", "shard-00001.h5"}) {
    auto path = folder + "/" + file, bytes = slurp(path);
    for (int i = 0, cuts = tessera::test::Sample::cases(15, 40); i < cuts; ++i) {
      fs::resize_file(path, engine() % bytes.size());
      EXPECT_HAS(error(), file);
      spill(path, bytes);
    }
  }
}

// Writing where it cannot be written

/// A full disk of `bytes`: a small tmpfs, or where one may not be mounted a limit on file sizes.
class FullDisk {
 public:
  FullDisk(const std::string& folder, std::int64_t bytes) : folder_(folder) {
    fs::create_directories(folder);
    mounted_ = ::mount("none", folder.c_str(), "tmpfs", 0, fmt::format("size={}", bytes).c_str()) == 0;
    if (mounted_) return;
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit{static_cast<rlim_t>(bytes), before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() {
    if (mounted_) {
      ::umount2(folder_.c_str(), MNT_DETACH);
    } else {
      ::setrlimit(RLIMIT_FSIZE, &before_);
      std::signal(SIGXFSZ, handler_);
    }
  }
  bool mounted() const { return mounted_; }

 private:
  std::string folder_;
  bool mounted_ = false;
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

TEST(Storage, FullDiskKeepsThePreviousCheckpoint) {
  Scratch dir;
  SmallModel first(2, 1), second(2, 2);
  auto one = static_cast<std::int64_t>(2 * 4 * (300007 + 5003 + 3)) + (2 << 20);
  FullDisk disk(dir / "full", one);  // room for one checkpoint
  const std::string root = dir / "full/checkpoints";
  first.save(root);
  if (disk.mounted()) {
    auto text = error_of(ExitCode::storage, [&] { second.save(root); });
    EXPECT_HAS(text, "shard-0000");
    EXPECT_HAS(text, "No space left on device");
    EXPECT_HAS(text, "free");
    discard_checkpoint(root, 2);
  }
  EXPECT_EQ(head_path(root), root + "/step-00000001");
  CheckpointReader(root + "/latest").verify({});
  EXPECT_FALSE(fs::exists(root + "/step-00000002.partial"));
}

/// The limit on file sizes refuses at different places of the save: each is reported with the system's words.
TEST(Storage, FileSizeLimit) {
  auto handler = std::signal(SIGXFSZ, SIG_IGN);
  for (const int shards : {1, 2}) {
    Scratch dir;
    SmallModel m(shards);
    if (shards > 1) m.layout.files = {0, 0};
    auto path = partial_folder(dir.path(), 1000) + "/shard-00000.h5";
    m.write_partial(dir.path());
    auto size = fs::file_size(path);
    rlimit before{};
    ::getrlimit(RLIMIT_FSIZE, &before);
    for (auto limit : {std::uintmax_t{100}, size / 2, size - 1}) {
      begin_checkpoint(dir.path(), 1000);
      rlimit now{limit, before.rlim_max};
      ::setrlimit(RLIMIT_FSIZE, &now);
      auto text = error_of(ExitCode::storage, [&] { m.write_one_shard(dir.path(), 0); });
      ::setrlimit(RLIMIT_FSIZE, &before);
      EXPECT_HAS(text, "shard-00000.h5");
      EXPECT_HAS(text, "File too large");
    }
    m.save(dir.path());  // and afterwards all works
    CheckpointReader(dir / "latest").verify({});
  }
  std::signal(SIGXFSZ, handler);
}

TEST(Storage, NoFolderAndNoPermission) {
  Scratch dir;
  SmallModel m(1);
  spill(dir / "file", "");
  EXPECT_HAS(error_of(ExitCode::storage, [&] { m.save(dir / "file"); }), "file");
  EXPECT_HAS(error_of(ExitCode::storage, [&] { m.write_one_shard(dir.path(), 0); }), "No such file or directory");
  // Root may write everywhere: become nobody for a moment.
  bool root = ::geteuid() == 0;
  fs::permissions(dir.path(), fs::perms::owner_all | fs::perms::others_read | fs::perms::others_exec);
  if (root) {
    ASSERT_EQ(::seteuid(65534), 0);
  } else {
    fs::permissions(dir.path(), fs::perms::owner_read | fs::perms::owner_exec);
  }
  auto text = error_of(ExitCode::storage, [&] { m.save(dir.path()); });
  ASSERT_EQ(root ? ::seteuid(0) : 0, 0);
  fs::permissions(dir.path(), fs::perms::owner_all);
  EXPECT_HAS(text, "Permission denied");
}

}  // namespace
}  // namespace tessera::io::test::checkpoint_faults_test
