// Checkpoints written with some number of shards read back with any, through our reader and through HDF5.
#include <unistd.h>

#include "base/hash.hpp"
#include "checkpoint_model.hpp"
#include "io/hdf5/hdf5.hpp"

namespace tessera::io::test {
namespace {

class Shards : public testing::TestWithParam<int> {};

TEST_P(Shards, ReadBack) {
  Scratch dir;
  SmallModel m(GetParam());
  m.save(dir.path());
  CheckpointReader reader(dir / "latest");
  EXPECT_EQ(reader.meta().step, 1000);
  EXPECT_EQ(reader.meta().sample_cursor, m.meta.sample_cursor);
  EXPECT_EQ(reader.meta().seed, m.meta.seed);
  EXPECT_EQ(reader.meta().deck, m.meta.deck);
  EXPECT_EQ(reader.meta().identity, "00ff");
  EXPECT_EQ(reader.meta().version, "0.1.0");
  EXPECT_EQ(layout_text(reader.layout()), layout_text(m.layout));
  EXPECT_EQ(reader.find("nothing"), nullptr);
  std::mt19937 engine(3);
  for (std::size_t g = 0; g < 2; ++g)
    for (auto& t : m.layout.tensors) {
      auto expected = m.tensor(g, t);
      auto* found = reader.find(t.name);
      ASSERT_NE(found, nullptr);
      EXPECT_EQ(found->shape, t.shape);
      std::vector<float> got(expected.size());
      reader.read(m.layout.groups[g], *found, 0, got);
      EXPECT_EQ(got, expected) << t.name;
      for (int k = 0; k < 5; ++k) {  // pieces
        auto a = engine() % expected.size(), b = a + engine() % (expected.size() - a + 1);
        std::vector<float> part(b - a);
        reader.read(m.layout.groups[g], *found, static_cast<std::int64_t>(a), part);
        EXPECT_TRUE(std::equal(part.begin(), part.end(), expected.begin() + static_cast<std::ptrdiff_t>(a)));
      }
      EXPECT_EQ(reader.tensor_hash(m.layout.groups[g], *found), hash_bytes(expected.data(), expected.size() * 4).hex());
    }
  // Another number of ranks reads slices of units.
  for (int ranks : {1, 2, 3, 4}) {
    for (int r = 0; r < ranks; ++r)
      for (int u = 0; u < 3; ++u) {
        auto& all = m.values[1][static_cast<std::size_t>(u)];
        auto n = static_cast<std::int64_t>(all.size());
        std::vector<float> part(static_cast<std::size_t>(slice_begin(n, ranks, r + 1) - slice_begin(n, ranks, r)));
        reader.read_unit("adam_m", u, slice_begin(n, ranks, r), part);
        EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + slice_begin(n, ranks, r)));
      }
  }
  std::int64_t done = 0, total = 0;
  reader.verify([&](std::int64_t d, std::int64_t t) { done = d, total = t; });
  EXPECT_EQ(done, total);
  EXPECT_EQ(total, 2 * 4 * (300007 + 5003 + 3));
}

TEST_P(Shards, Hdf5SeesNaturalShapes) {
  Scratch dir;
  SmallModel m(GetParam());
  m.save(dir / "a");
  // A copied folder still works, and so does the link: source files are named relative to the index.
  fs::copy(dir / "a/step-00001000", dir / "copied", fs::copy_options::recursive);
  for (auto& folder : {dir / "a/latest", dir / "copied"}) {
    auto file = hdf5::File::open(folder + "/checkpoint.h5", ExitCode::checkpoint);
    EXPECT_EQ(file.integer_attribute("step"), 1000);
    EXPECT_EQ(file.integer_attribute("tessera_format"), checkpoint_format);
    EXPECT_EQ(file.read_text("/deck"), m.meta.deck);
    EXPECT_EQ(file.read_text("/layout"), layout_text(m.layout));
    for (std::size_t g = 0; g < 2; ++g)
      for (auto& t : m.layout.tensors) {
        auto dataset = file.open_dataset("/" + m.layout.groups[g] + "/" + t.name);
        auto dims = t.shape.dims.empty() ? std::vector<std::int64_t>{1} : t.shape.dims;
        EXPECT_EQ(dataset.dims(), dims);
        std::vector<float> got(static_cast<std::size_t>(t.shape.elements()));
        dataset.read_slab({std::vector<std::int64_t>(dims.size(), 0), dims}, hdf5::Element::f32, got.data());
        EXPECT_EQ(got, m.tensor(g, t)) << t.name;
      }
    // A window inside a matrix.
    float window[2][3];
    file.open_dataset("/master/embedding.weight").read_slab({{600, 100}, {2, 3}}, hdf5::Element::f32, window);
    EXPECT_EQ(window[1][2], m.values[0][0][16 + 601 * 249 + 102]);
  }
  auto shard = hdf5::File::open(dir / "copied/shard-00000.h5", ExitCode::checkpoint);
  auto slice = shard.open_dataset("/master/layers.0");
  EXPECT_EQ(slice.dims(), std::vector<std::int64_t>{5003 / GetParam()});
  std::vector<float> got(static_cast<std::size_t>(5003 / GetParam()));
  slice.read<float>(0, got);
  EXPECT_TRUE(std::equal(got.begin(), got.end(), m.values[0][1].begin()));
  std::uint64_t hash[2];
  shard.open_dataset("/master/layers.0.xxh3").read_slab({{0, 0}, {1, 2}}, hdf5::Element::u64, hash);
  EXPECT_EQ((Hash128{hash[0], hash[1]}), hash_bytes(got.data(), got.size() * 4));
}

INSTANTIATE_TEST_SUITE_P(Any, Shards, testing::Values(1, 2, 3, 5));

TEST(Checkpoint, SameHashHoweverSharded) {
  Scratch dir;
  std::string first;
  for (int shards : {1, 3, 5}) {
    SmallModel m(shards, shards);
    m.save(dir.path());
    CheckpointReader r(dir.path() + "/" + checkpoint_name(shards));
    auto hash = r.tensor_hash("master", *r.find("embedding.weight"));
    if (first.empty()) first = hash;
    EXPECT_EQ(hash, first);
  }
}

TEST(Checkpoint, FlatRangesAsBoxes) {
  std::mt19937 engine(5);
  for (auto& dims : std::vector<std::vector<std::int64_t>>{{7}, {4, 5}, {3, 4, 5}, {2, 1, 3, 4}, {1, 9}, {9, 1}}) {
    std::int64_t n = Shape(dims).elements();
    for (std::int64_t a = 0; a <= n; ++a)
      for (std::int64_t b = a; b <= n; ++b) {
        std::vector<std::int64_t> visited;
        auto slabs = flat_range_slabs(dims, a, b);
        EXPECT_LE(slabs.size(), 2 * dims.size());
        for (auto& s : slabs) {  // walk the box row-major
          std::vector<std::int64_t> at(dims.size(), 0);
          for (;;) {
            std::int64_t flat = 0;
            for (std::size_t d = 0; d < dims.size(); ++d) flat = flat * dims[d] + s.start[d] + at[d];
            visited.push_back(flat);
            std::size_t d = dims.size();
            while (d > 0 && ++at[d - 1] == s.count[d - 1]) at[--d] = 0;
            if (d == 0) break;
          }
        }
        ASSERT_EQ(visited.size(), static_cast<std::size_t>(b - a));
        for (std::size_t i = 0; i < visited.size(); ++i) ASSERT_EQ(visited[i], a + static_cast<std::int64_t>(i));
      }
  }
}

TEST(Checkpoint, OtherToolsReadIt) {
  if (std::system("command -v h5dump >/dev/null 2>&1") != 0) GTEST_SKIP() << "h5dump is not installed";
  Scratch dir;
  SmallModel m(3);
  m.save(dir.path());
  auto text = dir / "dump.txt";
  ASSERT_EQ(
      std::system(fmt::format("h5dump -d /adam_m/layers.0.norm -y -w 1 -m %.9g {}/latest/checkpoint.h5 > {}", dir.path(), text).c_str()),
      0);
  auto dump = slurp(text);
  EXPECT_HAS(dump, fmt::format("{:.9g}", m.values[1][1][4000]));
  EXPECT_HAS(dump, fmt::format("{:.9g}", m.values[1][1][4096]));
  auto script = fmt::format(
      "import sys\ntry:\n  import h5py, numpy\nexcept ImportError: sys.exit(0)\n"
      "f = h5py.File('{}/latest/checkpoint.h5')\nw = f['master/embedding.weight'][()]\n"
      "assert w.shape == (1201, 249) and w[1200, 248] == numpy.float32({:.9g}), w\n"
      "assert f.attrs['step'] == 1000 and f.attrs['seed'] == {}\nassert b'tiny' in f['deck'][()]\n",
      dir.path(), m.values[0][0][16 + 1200 * 249 + 248], m.meta.seed);
  spill(dir / "read.py", script);
  // The environment of `scripts/setup --peer` has h5py; a bare python3 may not, and then the script has nothing to check.
  auto peer = fmt::format("{}/tessera/peer/bin/python", std::string(std::getenv("HOME") ? std::getenv("HOME") : "") + "/.cache");
  auto python = fs::exists(peer) ? peer : std::string("python3");
  EXPECT_EQ(std::system(fmt::format("{} {}", python, dir / "read.py").c_str()), 0);
}

// Folders

TEST(Commit, LatestAndKeep) {
  Scratch dir;
  EXPECT_EQ(find_latest_checkpoint(dir / "none"), "");
  for (int step : {1, 2, 3, 4}) SmallModel(2, step).save(dir.path(), 2);
  EXPECT_EQ(find_latest_checkpoint(dir.path()), dir / "step-00000004");
  EXPECT_EQ(fs::read_symlink(dir / "latest"), "step-00000004");
  EXPECT_FALSE(fs::exists(dir / "step-00000001"));
  EXPECT_FALSE(fs::exists(dir / "step-00000002"));
  EXPECT_TRUE(fs::exists(dir / "step-00000003"));
  // A run that was rolled back and saves an older step keeps what it just saved.
  SmallModel(2, 2).save(dir.path(), 1);
  EXPECT_EQ(find_latest_checkpoint(dir.path()), dir / "step-00000002");
  EXPECT_FALSE(fs::exists(dir / "step-00000004"));
  std::size_t names = 0;
  for ([[maybe_unused]] auto& e : fs::directory_iterator(dir.path())) ++names;
  EXPECT_EQ(names, 2u);  // the step and latest: nothing left over
}

TEST(Commit, SameStepAgain) {
  Scratch dir;
  SmallModel(2, 5, 1).save(dir.path());
  SmallModel again(3, 5, 2);
  again.save(dir.path());
  CheckpointReader r(dir / "latest");
  EXPECT_EQ(r.layout().shards, 3);
  r.verify({});
  EXPECT_FALSE(fs::exists(dir / "step-00000005.partial"));
}

TEST(Commit, UnfinishedIsNeverFound) {
  Scratch dir;
  SmallModel(2, 1).save(dir.path());
  SmallModel next(2, 2);
  begin_checkpoint(dir.path(), 2);
  next.write_one_shard(dir.path(), 0);
  EXPECT_EQ(find_latest_checkpoint(dir.path()), dir / "step-00000001");
  EXPECT_HAS(error_of(ExitCode::storage, [&] { write_index(dir.path(), next.layout, next.meta); }),
             "shard-00001.h5");  // no index without all shards
  next.write_one_shard(dir.path(), 1);
  write_index(dir.path(), next.layout, next.meta);
  EXPECT_EQ(find_latest_checkpoint(dir.path()), dir / "step-00000001");  // killed before the rename
  EXPECT_HAS(error_of(ExitCode::checkpoint, [&] { CheckpointReader r(dir / "step-00000002.partial"); }), "unfinished");
  fs::remove(dir / "latest");
  EXPECT_EQ(find_latest_checkpoint(dir.path()), dir / "step-00000001");
  // The next save clears it away.
  SmallModel(1, 3).save(dir.path());
  EXPECT_FALSE(fs::exists(dir / "step-00000002.partial"));
  EXPECT_EQ(find_latest_checkpoint(dir.path()), dir / "step-00000003");
}

TEST(Commit, LatestMissingOrDangling) {
  Scratch dir;
  for (int step : {8, 10}) SmallModel(1, step).save(dir.path());
  fs::remove(dir / "latest");
  EXPECT_EQ(find_latest_checkpoint(dir.path()), dir / "step-00000010");
  fs::create_symlink("step-00000099", dir / "latest");
  EXPECT_EQ(find_latest_checkpoint(dir.path()), dir / "step-00000010");
  fs::remove(dir / "step-00000010/checkpoint.h5");
  EXPECT_EQ(find_latest_checkpoint(dir.path()), dir / "step-00000008");
  // Killed between the two renames of a file system without exchange.
  fs::rename(dir / "step-00000008", dir / "step-00000008.replaced");
  EXPECT_EQ(find_latest_checkpoint(dir.path()), dir / "step-00000008.replaced");
  CheckpointReader(dir / "step-00000008.replaced").verify({});
  SmallModel(1, 8).save(dir.path());
  EXPECT_FALSE(fs::exists(dir / "step-00000008.replaced"));
  EXPECT_EQ(find_latest_checkpoint(dir.path()), dir / "step-00000008");
}

TEST(Commit, Discard) {
  Scratch dir;
  SmallModel m(1, 4);
  m.write_partial(dir.path());
  discard_checkpoint(dir.path(), 4);
  EXPECT_TRUE(fs::is_empty(dir.path()));
  discard_checkpoint(dir.path(), 4);
}

}  // namespace
}  // namespace tessera::io::test
