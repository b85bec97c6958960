// Checkpoints written with some number of shards read back with any, through our reader and through HDF5.
#include <unistd.h>

#include "base/hash.hpp"
#include "checkpoint_model.hpp"
#include "io/checkpoint/survey.hpp"
#include "io/hdf5/hdf5.hpp"

namespace tessera::io::test::checkpoint_test {
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
  EXPECT_EQ(reader.meta().values, m.meta.values);
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

/// What no step changes lies in files of its own, which a later save has by another name: it is whole without the earlier one, and nothing
/// is written into what another has.
TEST(Linked, AFileOfAnEarlierSave) {
  Scratch dir;
  SmallModel first(3, 1), second(3, 2);
  for (SmallModel* m : {&first, &second}) {
    m->layout.units[0].holders = {2};  // the third shard has the embedding, and it alone
    m->layout.units[1].holders = m->layout.units[2].holders = {0, 1};
  }
  const std::string before = first.save(dir.path());
  begin_checkpoint(dir.path(), 2);
  ASSERT_TRUE(link_file(before, dir.path(), 2, second.layout, 2));
  for (int shard : {0, 1}) second.write_one_shard(dir.path(), shard);
  EXPECT_TRUE(has(error_of(ExitCode::storage, [&] { write_index(dir.path(), second.layout, second.meta); }), "it is not shard 2"));
  write_index(dir.path(), second.layout, second.meta, std::vector{2});
  commit_checkpoint(dir.path(), 2, {.newest = 1});
  EXPECT_FALSE(fs::exists(before));
  const CheckpointReader reader(dir / "latest");
  EXPECT_EQ(reader.meta().step, 2);
  reader.verify({});
  std::vector<float> all(first.values[0][0].size());
  reader.read_unit("master", 0, 0, all);
  EXPECT_EQ(all, first.values[0][0]);
  // A save that has the name and is to write after all leaves the other's file alone.
  SmallModel third(3, 3, 99);
  third.layout = second.layout;
  begin_checkpoint(dir.path(), 3);
  ASSERT_TRUE(link_file(dir / "step-00000002", dir.path(), 3, third.layout, 2));
  unlink_file(dir.path(), 3, 2);
  unlink_file(dir.path(), 3, 2);
  third.write_one_shard(dir.path(), 2);
  reader.verify({});
  // What is not whole, or of another layout, is not linked.
  const std::string file = dir / "step-00000002/shard-00002.h5";
  begin_checkpoint(dir.path(), 4);
  ASSERT_TRUE(link_file(dir / "step-00000002", dir.path(), 4, second.layout, 2));
  unlink_file(dir.path(), 4, 2);
  EXPECT_FALSE(link_file(dir / "step-00000002", dir.path(), 4, SmallModel(3).layout, 2));
  fs::resize_file(file, fs::file_size(file) - 1);
  EXPECT_FALSE(link_file(dir / "step-00000002", dir.path(), 4, second.layout, 2));
  EXPECT_FALSE(link_file(dir / "nothing", dir.path(), 4, second.layout, 2));
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
    EXPECT_EQ(file.integer_attribute("tessera_format"), 1);
    EXPECT_EQ(file.read_text("/deck"), m.meta.deck);
    EXPECT_EQ(file.read_text("/layout"), layout_text(m.layout));
    for (std::size_t g = 0; g < 2; ++g)
      for (auto& t : m.layout.tensors) {
        auto dataset = file.open_dataset("/" + m.layout.groups[g] + "/" + t.name);
        auto dims = t.shape.dims.empty() ? std::vector<std::int64_t>{1} : t.shape.dims;
        EXPECT_EQ(dataset.dims(), dims);
        std::vector<float> got(static_cast<std::size_t>(t.shape.elements()));
        dataset.read_box({std::vector<std::int64_t>(dims.size(), 0), dims}, hdf5::Element::f32, got.data());
        EXPECT_EQ(got, m.tensor(g, t)) << t.name;
      }
    // A window inside a matrix.
    float window[2][3];
    file.open_dataset("/master/embedding.weight").read_box({{600, 100}, {2, 3}}, hdf5::Element::f32, window);
    EXPECT_EQ(window[1][2], m.values[0][0][16 + 601 * 249 + 102]);
  }
  auto shard = hdf5::File::open(dir / "copied/shard-00000.h5", ExitCode::checkpoint);
  auto slice = shard.open_dataset("/master/layers.0");
  EXPECT_EQ(slice.dims(), std::vector<std::int64_t>{5003 / GetParam()});
  std::vector<float> got(static_cast<std::size_t>(5003 / GetParam()));
  slice.read<float>(0, got);
  EXPECT_TRUE(std::equal(got.begin(), got.end(), m.values[0][1].begin()));
  std::uint64_t hash[2];
  shard.open_dataset("/master/layers.0.xxh3").read_box({{0, 0}, {1, 2}}, hdf5::Element::u64, hash);
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

/// Runs a script that needs h5py; without it there is nothing to check.
void run_python(const std::string& path, const std::string& script) {
  spill(path, "import sys\ntry:\n  import h5py, json, numpy\nexcept ImportError: sys.exit(0)\n" + script);
  // The environment of `scripts/setup --peer` has h5py, and so has Debian's Python after `scripts/setup`; another one on PATH may not.
  std::string python = fmt::format("{}/tessera/peer/bin/python", std::string(std::getenv("HOME") ? std::getenv("HOME") : "") + "/.cache");
  if (!fs::exists(python)) python = fs::exists("/usr/bin/python3") ? "/usr/bin/python3" : "python3";
  EXPECT_EQ(std::system(fmt::format("{} {}", python, path).c_str()), 0) << script;
}

/// Tensors whole in equal units, and cut into boxes of units with shards of their own.
TEST(Checkpoint, OtherToolsReadIt) {
  if (std::system("command -v h5dump >/dev/null 2>&1") != 0) GTEST_SKIP() << "h5dump is not installed";
  const SmallModel whole(3);
  for (auto& m : {whole, cut_again(whole, 3)}) {
    Scratch dir;
    m.save(dir.path());
    const auto norm = whole.tensor(1, whole.layout.tensors[3]);
    auto text = dir / "dump.txt";
    ASSERT_EQ(
        std::system(fmt::format("h5dump -d /adam_m/layers.0.norm -y -w 1 -m %.9g {}/latest/checkpoint.h5 > {}", dir.path(), text).c_str()),
        0);
    auto dump = slurp(text);
    EXPECT_HAS(dump, fmt::format("{:.9g}", norm[0]));
    EXPECT_HAS(dump, fmt::format("{:.9g}", norm[96]));
    const auto embedding = whole.tensor(0, whole.layout.tensors[0]), conv = whole.tensor(0, whole.layout.tensors[2]);
    run_python(dir / "read.py", fmt::format("f = h5py.File('{}/latest/checkpoint.h5')\nw = f['master/embedding.weight'][()]\n"
                                            "assert w.shape == (1201, 249) and w[1200, 248] == numpy.float32({:.9g}), w\n"
                                            "assert f['master/layers.0.conv'][1, 2, 3, 4] == numpy.float32({:.9g})\n"
                                            "assert f.attrs['step'] == 1000 and f.attrs['seed'] == {} and f.attrs['tessera_format'] == {}\n"
                                            "assert b'tiny' in f['deck'][()]\n",
                                            dir.path(), embedding[1200 * 249 + 248], conv[((1 * 5 + 2) * 7 + 3) * 11 + 4], m.meta.seed,
                                            checkpoint_format(m.layout)));
    // The example of docs/checkpoint_format.md that shows where tensors lie.
    const auto doc = slurp(TESSERA_FORMAT_DOC), words = std::string("    import h5py, json\n");
    const auto from = doc.find(words);
    ASSERT_NE(from, std::string::npos);
    auto example = doc.substr(from, doc.find("\n\n", from) + 1 - from);
    for (std::size_t at = 0; (at = example.find("    ", at)) != std::string::npos; at = example.find('\n', at)) example.erase(at, 4);
    const std::string folder = "runs/quickstart/checkpoints";
    ASSERT_NE(example.find(folder), std::string::npos);
    example.replace(example.find(folder), folder.size(), dir.path());
    run_python(dir / "example.py", example);
  }
}

// Folders

TEST(Commit, LatestAndKeep) {
  Scratch dir;
  EXPECT_EQ(head_path(dir / "none"), "");
  for (int step : {1, 2, 3, 4}) SmallModel(2, step).save(dir.path(), 2);
  EXPECT_EQ(head_path(dir.path()), dir / "step-00000004");
  EXPECT_EQ(fs::read_symlink(dir / "latest"), "step-00000004");
  EXPECT_EQ(names(dir.path()), "latest step-00000003 step-00000004");
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
  EXPECT_EQ(head_path(dir.path()), dir / "step-00000001");
  EXPECT_HAS(error_of(ExitCode::storage, [&] { write_index(dir.path(), next.layout, next.meta); }),
             "shard-00001.h5");  // no index without all shards
  next.write_one_shard(dir.path(), 1);
  write_index(dir.path(), next.layout, next.meta);
  EXPECT_EQ(head_path(dir.path()), dir / "step-00000001");  // killed before the rename
  EXPECT_HAS(error_of(ExitCode::checkpoint, [&] { CheckpointReader r(dir / "step-00000002.partial"); }), "unfinished");
  fs::remove(dir / "latest");
  EXPECT_EQ(head_path(dir.path()), dir / "step-00000001");
  // The next save clears it away.
  SmallModel(1, 3).save(dir.path());
  EXPECT_FALSE(fs::exists(dir / "step-00000002.partial"));
  EXPECT_EQ(head_path(dir.path()), dir / "step-00000003");
}

/// A run that went back to step 2 of line 1: its own checkpoints are line 2.
TEST(Commit, KeepCountsTheLineOfTheSave) {
  Scratch dir;
  for (int step : {1, 2, 3, 5}) SmallModel(1, step).on({1}).save(dir.path());
  SmallModel(1, 3, 99).on({1, 2}).save(dir.path(), 2);
  EXPECT_EQ(names(dir.path()), "latest step-00000001 step-00000002 step-00000003 step-00000005") << "one of two is no reason to remove any";
  EXPECT_EQ(head_path(dir.path()), dir / "step-00000003");
  SmallModel(1, 4, 99).on({1, 2}).save(dir.path(), 2);
  EXPECT_EQ(names(dir.path()), "latest step-00000003 step-00000004 step-00000005") << "step 5 of line 1 is not overtaken";
  SmallModel(1, 6, 99).on({1, 2}).save(dir.path(), 2);
  EXPECT_EQ(names(dir.path()), "latest step-00000004 step-00000006");
  SmallModel(1, 7, 99).on({1, 2}).save(dir.path(), 1);
  EXPECT_EQ(names(dir.path()), "latest step-00000007");
}

TEST(Commit, DamagedOnesDoNotCount) {
  Scratch dir;
  for (int step : {1, 2, 3, 4}) SmallModel(2, step).save(dir.path());
  fs::remove(dir / "step-00000004/checkpoint.h5");
  fs::remove(dir / "step-00000003/shard-00001.h5");
  SmallModel(2, 5).save(dir.path(), 2);
  EXPECT_EQ(names(dir.path()), "latest step-00000002 step-00000003 step-00000004 step-00000005") << "2 and 5 are the two whole ones";
  SmallModel(2, 6).save(dir.path(), 2);
  EXPECT_EQ(names(dir.path()), "latest step-00000004 step-00000005 step-00000006") << "what cannot be read is left alone";
}

TEST(Commit, LatestMissing) {
  Scratch dir;
  for (int step : {8, 10}) SmallModel(1, step).save(dir.path());
  fs::remove(dir / "latest");
  EXPECT_EQ(head_path(dir.path()), dir / "step-00000010");
  SmallModel(1, 9).on({1, 2}).save(dir.path());
  fs::remove(dir / "latest");
  EXPECT_EQ(head_path(dir.path()), dir / "step-00000009") << "the newest line, not the highest step";
  fs::remove(dir / "step-00000010/checkpoint.h5");
  EXPECT_HAS(head_fault(dir.path()), "step-00000010/checkpoint.h5") << "what cannot be read may be the newest";
}

/// Only "there is nothing here" is nothing: all else is a fault that names the path and the reason.
TEST(Commit, WhatCannotBeReadIsNotNothing) {
  Scratch dir;
  for (int step : {8, 10}) SmallModel(1, step).save(dir / "a");
  const std::string root = dir / "a", latest = root + "/latest";
  fs::remove(root + "/step-00000010/checkpoint.h5");
  EXPECT_HAS(head_fault(root), "step-00000010/checkpoint.h5: the index is missing");
  fs::create_symlink("checkpoint.h5", root + "/step-00000010/checkpoint.h5");
  EXPECT_HAS(head_fault(root), "Too many levels of symbolic links");
  auto point = [&](const char* target) {
    fs::remove(latest);
    fs::create_symlink(target, latest);
  };
  point("latest");
  EXPECT_HAS(head_fault(root), "Too many levels of symbolic links");
  point("step-00000099");
  EXPECT_HAS(head_fault(root), "latest -> step-00000099: cannot read it: it is a link to nothing");
  point("step-00000008");
  EXPECT_EQ(head_path(root), root + "/step-00000008") << "what is damaged beside it does not matter";
  fs::remove(latest);
  spill(latest, "");
  EXPECT_HAS(head_fault(root), "it is a file");
  spill(root + "/step-00000012", "a file");
  EXPECT_EQ(survey_checkpoints(root).entries.front().fault.empty(), false);
  fs::create_symlink(".", root + "/step-00000013");
  EXPECT_HAS(survey_checkpoints(root).entries.front().fault, "the index is missing");
  fs::create_symlink("b", dir / "b");
  EXPECT_HAS(head_fault(dir / "b"), "Too many levels of symbolic links");
  EXPECT_HAS(error_of(ExitCode::checkpoint, [&] { CheckpointReader r(dir / "b"); }), "Too many levels of symbolic links");
  fs::create_symlink("gone", dir / "c");
  EXPECT_HAS(head_fault(dir / "c"), "it is a link to nothing");
  EXPECT_EQ(head_path(dir / "none") + head_fault(dir / "none"), "");
}

TEST(Commit, KilledBetweenTwoRenames) {
  Scratch dir;
  SmallModel(1, 8).save(dir.path());
  // A file system without exchange: the step's older save alone is there, and `latest` dangles.
  fs::rename(dir / "step-00000008", dir / "step-00000008.replaced");
  EXPECT_EQ(head_path(dir.path()), dir / "step-00000008.replaced");
  CheckpointReader(dir / "step-00000008.replaced").verify({});
  SmallModel(1, 8).save(dir.path(), 2);
  EXPECT_EQ(names(dir.path()), "latest step-00000008");
  fs::copy(dir / "step-00000008", dir / "step-00000008.replaced", fs::copy_options::recursive);
  SmallModel(1, 9).save(dir.path(), 2);
  EXPECT_EQ(names(dir.path()), "latest step-00000008 step-00000009");
}

/// cp -rL and scp -r make `latest` a folder.
TEST(Commit, LatestIsACopy) {
  Scratch dir;
  for (int step : {3, 5}) SmallModel(2, step).on({1, 2}).save(dir / "run");
  const std::string root = dir / "copy";
  auto copy = [&] {
    fs::remove_all(root);
    ASSERT_EQ(std::system(fmt::format("cp -rL {}/run {}", dir.path(), root).c_str()), 0);
    ASSERT_TRUE(fs::is_directory(root + "/latest") && !fs::is_symlink(root + "/latest"));
  };
  auto settled = [&](const std::string& step) {
    EXPECT_EQ(fs::read_symlink(root + "/latest"), step);
    CheckpointReader(root + "/latest").verify({});
  };
  copy();
  EXPECT_EQ(head_path(root), root + "/step-00000005");
  SmallModel(2, 7).on({1, 2}).save(root);  // a save while it is a folder
  settled("step-00000007");
  EXPECT_EQ(names(root), "latest step-00000003 step-00000005 step-00000007");
  copy();
  fs::remove_all(root + "/step-00000005");  // the copy is all there is of step 5
  EXPECT_EQ(head_path(root), root + "/latest");
  point_latest(root, "step-00000005");
  settled("step-00000005");
  copy();
  fs::remove(root + "/step-00000005/shard-00001.h5");
  point_latest(root, "step-00000005");
  settled("step-00000005");
  EXPECT_EQ(names(root), "latest step-00000003 step-00000005 step-00000005.damaged") << "nothing is thrown away that could not be read";
  copy();
  fs::remove(root + "/latest/shard-00001.h5");  // a broken copy beside a whole step
  point_latest(root, "step-00000005");
  settled("step-00000005");
  copy();
  fs::remove_all(root + "/step-00000005");
  SmallModel(1, 5, 99).write_partial(root);
  fs::rename(root + "/step-00000005.partial", root + "/step-00000005");
  EXPECT_HAS(head_fault(root), "another save of that step");
  EXPECT_HAS(error_of(ExitCode::checkpoint, [&] { point_latest(root, "step-00000005"); }), "Remove one of them");
}

TEST(Commit, ByDescent) {
  Scratch dir;
  SmallModel(1, 1).on({1}).save(dir.path());
  SmallModel(1, 2).on({1}).save(dir.path());
  SmallModel(1, 6).on({1}).save(dir.path());
  SmallModel(1, 3).on({1, 2}).save(dir.path());
  SmallModel(1, 5).on({1, 2}).save(dir.path());
  const auto survey = survey_checkpoints(dir.path());
  auto order = [&](const Lineage& lineage) {
    std::string out;
    for (auto& entry : by_descent(survey, lineage)) out += std::to_string(entry.step);
    return out;
  };
  EXPECT_EQ(order(SmallModel(1).on({1, 2}).meta.lineage), "53216") << "the line that began at step 2, what it came from, the abandoned one";
  EXPECT_EQ(order(SmallModel(1).on({1}).meta.lineage), "62153");
}

/// Checkpoints of older versions have no lineage: they are line 0.
TEST(Commit, LineagesAreReadBack) {
  Scratch dir;
  SmallModel model = SmallModel(1, 4).on({1, 3});
  model.meta.lineage.back().from = "runs/x/checkpoints/\"a\"";
  model.save(dir.path());
  EXPECT_EQ(CheckpointReader(dir / "latest").meta().lineage, model.meta.lineage);
  IndexDirectory d{.meta = model.meta, .layout = model.layout, .structure = {}, .files = {Hash128{}}};
  std::string text = write_directory(d);
  const auto begin = text.find("\"lineage\""), end = text.find("\"hash_block\"");
  text.erase(begin, end - begin);
  EXPECT_EQ(parse_index_directory(text, "old").meta.lineage, Lineage(1));
  EXPECT_EQ(Lineage(1).back().number, 0);
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
}  // namespace tessera::io::test::checkpoint_test
