// Checkpoints whose groups hold unlike tensors (format 4).
#include <gtest/gtest.h>

#include "checkpoint_model.hpp"
#include "io/checkpoint/envelope.hpp"
#include "io/checkpoint/staging.hpp"
#include "io/hdf5/hdf5.hpp"

namespace tessera::io::test {
namespace {

void expect_groups(const std::string& folder, const SmallModel& model) {
  CheckpointReader reader(folder);
  EXPECT_EQ(checkpoint_format(reader.layout()), 4);
  EXPECT_EQ(layout_text(reader.layout()), layout_text(model.layout));
  reader.require_shards();
  std::int64_t done = 0, total = 0;
  reader.verify([&](std::int64_t d, std::int64_t t) { done = d, total = t; });
  EXPECT_EQ(done, total);
  EXPECT_EQ(total, model.layout.bytes());
  // Whoever is asked to stop leaves in the middle of a checkpoint, and is not told that it is damaged.
  int pieces = 0;
  try {
    reader.verify([&](std::int64_t, std::int64_t) { ++pieces, fail(ExitCode::interrupted, "stopped"); });
    ADD_FAILURE() << "it went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ExitCode::interrupted);
  }
  EXPECT_EQ(pieces, 1);
  const auto file = hdf5::File::open(folder + "/checkpoint.h5", ExitCode::checkpoint);
  EXPECT_EQ(file.integer_attribute("tessera_format"), 4);
  for (std::size_t g = 0; g < 2; ++g) {
    const std::string& group = model.layout.groups[g];
    for (const CheckpointTensor& t : model.layout.tensors) {
      if (!model.layout.lies_in(t, static_cast<int>(g))) continue;
      const CheckpointTensor* found = reader.find(group, t.name);
      ASSERT_NE(found, nullptr) << group << " " << t.name;
      EXPECT_EQ(found->shape, t.shape);
      const std::vector<float> natural = model.tensor(g, t);
      EXPECT_EQ(reader.tensor_hash(group, *found), hash_bytes(natural.data(), natural.size() * 4).hex()) << group << " " << t.name;
      if (t.shape.dims.empty()) continue;
      const auto dataset = file.open_dataset("/" + group + "/" + t.name);
      EXPECT_EQ(dataset.dims(), t.shape.dims);
      std::vector<float> got(natural.size());
      dataset.read_box(whole_box(t.shape), hdf5::Element::f32, got.data());
      EXPECT_EQ(got, natural) << group << " " << t.name;
    }
  }
  EXPECT_EQ(reader.find("layers.1.wq")->shape, Shape({31, 77}));
  EXPECT_EQ(reader.find("adam_m", "layers.1.wq")->shape, Shape({31}));
  EXPECT_EQ(reader.find("adam_m", "layers.0.frozen.w"), nullptr);
  EXPECT_THROW(file.open_dataset("/adam_m/layers.0.frozen.w"), Error);
}

TEST(GroupCheckpoint, HasOfEachGroupWhatLiesThere) {
  for (const int shards : {1, 2, 5})
    for (const bool shared : {false, true}) {
      SCOPED_TRACE(fmt::format("{} shards, in shared files {}", shards, shared));
      const Scratch dir;
      GroupedModel model(shards);
      if (shared)
        for (int s = 0; s < shards; ++s) model.layout.files.push_back(s % std::min(shards, 2));
      if (shards == 5) model.layout.units[5].holders = {4, 1}, model.layout.units[3].holders = {2};
      expect_groups(model.save(dir.path()), model);
    }
}

TEST(GroupCheckpoint, PassesThroughTheNodesDisk) {
  const Scratch dir, disk;
  const GroupedModel model(1);
  Staging node(disk.path(), dir.path(), 0);
  std::vector<ShardSlice> slices;
  for (auto& [g, s] : slices_of_groups(model.layout, 0))
    slices.push_back({g, s.unit, std::span<const float>(model.values[static_cast<std::size_t>(g)][static_cast<std::size_t>(s.unit)])});
  node.write(model.meta.step, model.layout, 0, slices);
  begin_checkpoint(dir.path(), model.meta.step);
  node.drain(dir.path(), model.meta.step, model.layout, 0);
  write_index(dir.path(), model.layout, model.meta);
  commit_checkpoint(dir.path(), model.meta.step, {});
  expect_groups(dir / checkpoint_name(model.meta.step), model);
}

/// Damage is found in whatever lies there, and named.
TEST(GroupCheckpoint, NamesWhatIsDamaged) {
  const GroupedModel model(2);
  for (const auto& [group, unit, tensor] :
       {std::tuple{0, 3, "/master/layers.0.frozen"}, std::tuple{1, 5, "/adam_m/layers.1.rows"}, std::tuple{1, 1, "/adam_m/layers.0,"}}) {
    const Scratch dir;
    const std::string folder = model.save(dir.path()), file = folder + "/shard-00001.h5";
    const auto shard = PosixFile::open(file, ExitCode::checkpoint);
    const ShardDirectory directory = parse_shard_directory(read_envelope(shard, "shard").directory, file);
    const auto held = slices_of_groups(model.layout, 1);
    const auto slice =
        std::ranges::find_if(held, [&](const GroupSlice& s) { return s.group == group && s.of.unit == unit; }) - held.begin();
    flip_byte(file, directory.slices[static_cast<std::size_t>(slice)].data_at + 6);
    try {
      CheckpointReader(folder).verify({});
      ADD_FAILURE() << tensor;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(tensor), std::string::npos) << error.what();
    }
  }
}

TEST(GroupCheckpoint, RefusesLayoutsThatCannotBe) {
  const auto fault = [](const auto& change) -> std::string {
    GroupedModel model(2);
    change(model.layout);
    try {
      require_layout(model.layout);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(fault([](CheckpointLayout&) {}), "");
  EXPECT_NE(fault([](CheckpointLayout& l) { l.units[5].groups = {0}; }).find("'layers.1.wq' occurs twice in group master"),
            std::string::npos);
  EXPECT_NE(fault([](CheckpointLayout& l) { l.units[5].groups = {2}; }).find("is in group 2"), std::string::npos);
  EXPECT_NE(fault([](CheckpointLayout& l) { l.units[3].groups = {1, 1}; }).find("occurs twice"), std::string::npos);
  EXPECT_NE(fault([](CheckpointLayout& l) {
              l.tensors[6].pieces = {{3, 8, {{0, 0}, {10, 35}}}, {1, 4100, {{10, 0}, {10, 35}}}};
            }).find("unlike groups"),
            std::string::npos);
}

/// Weights alone are the first group, of which every unit of weights is.
TEST(GroupCheckpoint, AShardHoldsNoUnitOfAnotherGroup) {
  const GroupedModel model(3);
  std::set<std::pair<int, int>> held;
  for (int shard = 0; shard < 3; ++shard)
    for (const GroupSlice& s : slices_of_groups(model.layout, shard)) held.insert({s.group, s.of.unit});
  EXPECT_EQ(held, (std::set<std::pair<int, int>>{{0, 0}, {0, 1}, {0, 2}, {0, 3}, {0, 4}, {1, 0}, {1, 1}, {1, 2}, {1, 5}}));
}

}  // namespace
}  // namespace tessera::io::test
