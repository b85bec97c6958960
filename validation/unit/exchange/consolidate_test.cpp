// Whole weights out of shards: names, shapes, types and every value.
#include "exchange/consolidate.hpp"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cstring>
#include <set>
#include "base/json.hpp"

#include "../model/random_models.hpp"
#include "../scratch.hpp"
#include "../sharded_checkpoint.hpp"
#include "io/hdf5/hdf5.hpp"
#include "io/safetensors/safetensors.hpp"
#include "io/safetensors/safetensors_model.hpp"

namespace tessera::consolidate_test {
namespace {

using test::Scratch;

/// Names and raw bytes of all tensors in the given files.
std::map<std::string, std::pair<io::SafetensorsTensor, std::vector<std::byte>>> read_all(const std::vector<std::string>& paths) {
  std::map<std::string, std::pair<io::SafetensorsTensor, std::vector<std::byte>>> all;
  for (const auto& path : paths)
    for (const auto& tensor : io::read_safetensors_header(path)) {
      EXPECT_FALSE(all.contains(tensor.name)) << "twice";
      all[tensor.name] = {tensor, io::read_safetensors_tensor(path, tensor)};
    }
  return all;
}

template <class T>
void expect_values(const Deck& deck, const std::vector<std::string>& paths) {
  const auto all = read_all(paths);
  const auto table = parameter_table(deck.model);
  ASSERT_EQ(all.size(), table.size());
  for (const Parameter& p : table) {
    ASSERT_TRUE(all.contains(p.export_name)) << p.export_name;
    const auto& [tensor, bytes] = all.at(p.export_name);
    EXPECT_EQ(tensor.shape, p.shape) << p.name;
    EXPECT_EQ(tensor.type, row_of(dtype_of<T>()).safetensors) << p.name;
    ASSERT_EQ(bytes.size(), static_cast<std::size_t>(p.shape.elements()) * sizeof(T));
    for (std::int64_t i = 0; i < p.shape.elements(); ++i) {
      T value;
      std::memcpy(&value, bytes.data() + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
      ASSERT_EQ(value, T(test::value_at("master", p.name, i))) << p.name << " element " << i;
    }
  }
}

/// The stored list of what transformers writes, and the same deck.
struct Export {
  std::string name;
  std::vector<std::string> overrides;
};
const std::vector<Export> exports = {
    {"tied", {"model.ff_width=64", "model.tied=true", "model.kv_heads=4"}},
    {"gqa4", {"model.heads=8", "model.kv_heads=2"}},
    {"qk_norm", {"model.kv_heads=2", "model.head_dim=12", "model.qk_norm=true", "model.tied=true"}},
    {"qkv_bias", {"model.kv_heads=2", "model.qkv_bias=true", "model.vocab=131"}},
};

TEST(Consolidate, EveryModelAsItsStoredListAndEveryValue) {
  for (const Export& e : exports)
    for (int shards : {1, 3}) {
      const Scratch scratch;
      std::vector<std::string> overrides{"model.vocab=96"};
      overrides.insert(overrides.end(), e.overrides.begin(), e.overrides.end());
      const Deck deck = test::tiny_deck(overrides);
      const auto result = consolidate({.checkpoint = test::write_sharded(scratch.path(), deck, shards), .output = scratch / "out"});
      EXPECT_EQ(result.files, (std::vector<std::string>{"model.safetensors", "config.json", "generation_config.json"}));
      std::set<std::string> ours, theirs;
      for (const auto& t : io::read_safetensors_header(scratch / "out/model.safetensors"))
        ours.insert(fmt::format("{} F32 {}", t.name, fmt::join(t.shape.dims, "x")));
      std::ifstream list(std::string(TESSERA_EXPORTS) + "/" + e.name + ".txt");
      for (std::string line; std::getline(list, line);) theirs.insert(line);
      EXPECT_EQ(ours, theirs) << e.name;
      expect_values<float>(deck, {scratch / "out/model.safetensors"});
      EXPECT_EQ(Json::parse(test::slurp(scratch / "out/config.json")).at("torch_dtype"), "float32");
    }
}

TEST(Consolidate, ACutCheckpointGivesTheSameFiles) {
  const Scratch scratch;
  const Deck deck = test::tiny_deck({"model.qkv_bias=true"});
  for (int cuts : {1, 3}) {
    const std::string folder = test::write_sharded(scratch / fmt::format("of{}", cuts), deck, 2, 5, cuts);
    EXPECT_EQ(io::checkpoint_format(io::CheckpointReader(folder).layout()), cuts == 1 ? 1 : 2);
    for (const char* format : {"safetensors", "hdf5"})
      consolidate({.checkpoint = folder, .output = scratch / fmt::format("{}-{}", format, cuts), .format = format});
  }
  for (const char* file : {"model.safetensors", "config.json"})
    EXPECT_EQ(test::slurp(scratch / "safetensors-3/" + file), test::slurp(scratch / "safetensors-1/" + file)) << file;
  expect_values<float>(deck, {scratch / "safetensors-3/model.safetensors"});
  const auto one = io::hdf5::File::open(scratch / "hdf5-1/model.h5", ExitCode::data),
             three = io::hdf5::File::open(scratch / "hdf5-3/model.h5", ExitCode::data);
  for (const Parameter& p : parameter_table(deck.model)) {
    std::vector<float> a(static_cast<std::size_t>(p.shape.elements())), b(a.size());
    one.open_dataset(p.name).read_box(whole_box(p.shape), io::hdf5::Element::f32, a.data());
    three.open_dataset(p.name).read_box(whole_box(p.shape), io::hdf5::Element::f32, b.data());
    EXPECT_EQ(a, b) << p.name;
  }
}

TEST(Consolidate, Fp16IsTheRoundedValue) {
  const Scratch scratch;
  const Deck deck = test::tiny_deck({});
  consolidate({.checkpoint = test::write_sharded(scratch.path(), deck, 2), .output = scratch / "out", .dtype = DType::f16});
  expect_values<f16>(deck, {scratch / "out/model.safetensors"});
  EXPECT_EQ(Json::parse(test::slurp(scratch / "out/config.json")).at("torch_dtype"), "float16");
}

TEST(Consolidate, Bf16IsTheRoundedValue) {
  const Scratch scratch;
  const Deck deck = test::tiny_deck({"zero.stage=3", "zero.param_persistence_threshold=100"});
  consolidate({.checkpoint = test::write_sharded(scratch.path(), deck, 4), .output = scratch / "out", .dtype = DType::bf16});
  expect_values<bf16>(deck, {scratch / "out/model.safetensors"});
  EXPECT_EQ(Json::parse(test::slurp(scratch / "out/config.json")).at("torch_dtype"), "bfloat16");
}

TEST(Consolidate, SplitFilesHoldEachTensorOnceAndTheIndexSaysWhere) {
  const Scratch scratch;
  const Deck deck = test::tiny_deck();
  const auto result =
      consolidate({.checkpoint = test::write_sharded(scratch.path(), deck, 2), .output = scratch / "out", .max_file_bytes = 20000});
  const auto index = Json::parse(test::slurp(scratch / "out/model.safetensors.index.json"));
  std::vector<std::string> paths;
  for (const auto& file : result.files)
    if (file.ends_with(".safetensors")) paths.push_back(scratch / ("out/" + file));
  ASSERT_GT(paths.size(), 2u);
  expect_values<float>(deck, paths);
  for (const auto& path : paths)
    for (const auto& t : io::read_safetensors_header(path))
      EXPECT_EQ(index.at("weight_map").at(t.name), test::fs::path(path).filename().string());
  EXPECT_EQ(index.at("metadata").at("total_size"), result.bytes);
}

TEST(Consolidate, Hdf5HoldsOurNamesInNaturalShape) {
  const Scratch scratch;
  const Deck deck = test::tiny_deck({"model.qk_norm=true", "model.qkv_bias=true"});
  consolidate({.checkpoint = test::write_sharded(scratch.path(), deck, 3), .output = scratch / "out", .format = "hdf5"});
  const auto file = io::hdf5::File::open(scratch / "out/model.h5", ExitCode::data);
  for (const Parameter& p : parameter_table(deck.model)) {
    const auto data = file.open_dataset(p.name);
    ASSERT_EQ(data.dims(), p.shape.dims) << p.name;
    std::vector<float> values(static_cast<std::size_t>(p.shape.elements()));
    data.read_box({std::vector<std::int64_t>(p.shape.dims.size(), 0), p.shape.dims}, io::hdf5::Element::f32, values.data());
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(values[i], test::value_at("master", p.name, static_cast<std::int64_t>(i))) << p.name;
  }
}

TEST(Consolidate, APartOfTheTensorsAndTheirMoments) {
  const Scratch scratch;
  const Deck deck = test::tiny_deck();
  const std::string folder = test::write_sharded(scratch.path(), deck, 2);
  const ConsolidateResult part =
      consolidate({.checkpoint = folder, .output = scratch / "part", .tensors = {"layers.1.*.wq", "model.embed_tokens.*"}});
  EXPECT_EQ(part.files, std::vector<std::string>{"model.safetensors"}) << "no configuration: this is no model";
  std::set<std::string> names;
  for (const auto& tensor : io::read_safetensors_header(scratch / "part/model.safetensors")) names.insert(tensor.name);
  EXPECT_EQ(names, (std::set<std::string>{"model.embed_tokens.weight", "model.layers.1.self_attn.q_proj.weight"}));
  const ConsolidateResult moments = consolidate(
      {.checkpoint = folder, .output = scratch / "moments", .format = "hdf5", .tensors = {"layers.?.attention.wo"}, .optimizer = true});
  EXPECT_EQ(moments.tensors, 6);
  auto file = io::hdf5::File::open(scratch / "moments/model.h5", ExitCode::data);
  for (const auto& [name, group] : {std::pair("layers.0.attention.wo", "master"), std::pair("/adam_m/layers.1.attention.wo", "adam_m"),
                                    std::pair("/adam_v/layers.0.attention.wo", "adam_v")}) {
    auto dataset = file.open_dataset(name);
    std::vector<float> values(static_cast<std::size_t>(dataset.elements()));
    dataset.read_box({std::vector<std::int64_t>(dataset.dims().size(), 0), dataset.dims()}, io::hdf5::Element::f32, values.data());
    const std::string tensor = std::string(name).substr(std::string(name).find("layers"));
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(values[i], test::value_at(group, tensor, static_cast<std::int64_t>(i))) << name;
  }
  const std::string said =
      test::error_of(ExitCode::usage, [&] { consolidate({.checkpoint = folder, .output = scratch / "x", .tensors = {"layer.*"}}); });
  EXPECT_TRUE(test::has(said, "--tensor 'layer.*' is not a tensor")) << said;
  EXPECT_TRUE(
      test::has(test::error_of(ExitCode::usage, [&] { consolidate({.checkpoint = folder, .output = scratch / "x", .optimizer = true}); }),
                "--format hdf5"));
  EXPECT_FALSE(test::fs::exists(scratch / "x"));
}

TEST(Consolidate, RefusalsLeaveNothing) {
  const Scratch scratch;
  const std::string both = test::write_sharded(scratch / "both", test::tiny_deck({"model.qk_norm=true", "model.qkv_bias=true"}), 1);
  test::error_of(ExitCode::usage,
                 [&] { consolidate({.checkpoint = both, .output = scratch / "out", .format = "hdf5", .dtype = DType::bf16}); });
  EXPECT_FALSE(test::fs::exists(scratch / "out/model.h5"));
  test::error_of(ExitCode::checkpoint, [&] { consolidate({.checkpoint = scratch / "nothing", .output = scratch / "out"}); });
  test::spill(scratch / "file", "");
  const std::string text =
      test::error_of(ExitCode::environment, [&] { consolidate({.checkpoint = both, .output = scratch / "file", .format = "hdf5"}); });
  EXPECT_TRUE(test::has(text, scratch / "file")) << text;
}

TEST(Consolidate, Qwen3WithBiasHasAnOutputBiasOfZeros) {
  // One switch of Qwen3's configuration adds biases to q, k, v and the output; ours has none on the output.
  const Scratch scratch;
  const Deck deck = test::tiny_deck({"model.qk_norm=true", "model.qkv_bias=true"});
  const auto result = consolidate({.checkpoint = test::write_sharded(scratch.path(), deck, 2), .output = scratch / "out"});
  const auto config = Json::parse(test::slurp(scratch / "out/config.json"));
  EXPECT_EQ(config.at("model_type"), "qwen3");
  EXPECT_EQ(config.at("attention_bias"), true);
  int biases = 0;
  for (const auto& t : io::read_safetensors_header(scratch / "out/model.safetensors")) {
    if (!t.name.ends_with(".self_attn.o_proj.bias")) continue;
    ++biases;
    EXPECT_EQ(t.shape.dims, (std::vector<std::int64_t>{deck.model.width}));
    const auto bytes = io::read_safetensors_tensor(scratch / "out/model.safetensors", t);
    EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; })) << t.name;
  }
  EXPECT_EQ(biases, deck.model.layers);
  EXPECT_EQ(result.tensors, static_cast<std::int64_t>(parameter_table(deck.model).size()) + biases);
}

TEST(Consolidate, AWidthThatIsNoMultipleOfTheHeadsIsAMistral) {
  const Scratch scratch;
  const Deck deck = test::tiny_deck({"model.heads=3", "model.kv_heads=3", "model.head_dim=8"});
  ASSERT_NE(deck.model.width % deck.model.heads, 0);
  consolidate({.checkpoint = test::write_sharded(scratch.path(), deck, 1), .output = scratch / "out"});
  const auto config = Json::parse(test::slurp(scratch / "out/config.json"));
  EXPECT_EQ(config.at("architectures"), Json({"MistralForCausalLM"}));
  EXPECT_EQ(config.at("model_type"), "mistral");
  EXPECT_EQ(config.at("head_dim"), 8);
  EXPECT_TRUE(config.at("sliding_window").is_null());
}

TEST(Consolidate, TextsOfTheByteTokenizerBeginAndEndWithItsSeparator) {
  for (auto [vocab, id] : {std::pair{"model.vocab=257", Json(256)}, std::pair{"model.vocab=258", Json()}}) {
    const Scratch scratch;
    consolidate({.checkpoint = test::write_sharded(scratch.path(), test::tiny_deck({vocab}), 1), .output = scratch / "out"});
    for (const char* file : {"out/config.json", "out/generation_config.json"}) {
      const auto written = Json::parse(test::slurp(scratch / file));
      EXPECT_EQ(written.at("bos_token_id"), id) << file;
      EXPECT_EQ(written.at("eos_token_id"), id) << file;
    }
  }
}

TEST(Consolidate, AFolderOfSomethingElseIsLeftAlone) {
  const Scratch scratch;
  const std::string folder = test::write_sharded(scratch.path(), test::tiny_deck(), 1);
  test::fs::create_directory(scratch / "out");
  test::spill(scratch / "out/notes.txt", "mine");
  const std::string text = test::error_of(ExitCode::usage, [&] { consolidate({.checkpoint = folder, .output = scratch / "out"}); });
  EXPECT_TRUE(test::has(text, "notes.txt")) << text;
  EXPECT_FALSE(test::fs::exists(scratch / "out/model.safetensors"));
  EXPECT_EQ(test::slurp(scratch / "out/notes.txt"), "mine");
  // What a killed export left behind is no obstacle.
  test::fs::remove(scratch / "out/notes.txt");
  test::spill(scratch / "out/model.safetensors.partial", "half");
  EXPECT_NO_THROW(consolidate({.checkpoint = folder, .output = scratch / "out"}));
}

TEST(Consolidate, ADamagedShardIsNamedAndLeavesNoModel) {
  const Scratch scratch;
  const std::string folder = test::write_sharded(scratch.path(), test::tiny_deck(), 2);
  const std::string shard = folder + "/shard-00001.h5";
  std::string bytes = test::slurp(shard);
  bytes[bytes.size() / 8] = static_cast<char>(bytes[bytes.size() / 8] ^ 1);  // in the first group: the weights
  test::spill(shard, bytes);
  const std::string text = test::error_of(ExitCode::checkpoint, [&] { consolidate({.checkpoint = folder, .output = scratch / "out"}); });
  EXPECT_TRUE(test::has(text, "shard-00001.h5")) << text;
  EXPECT_FALSE(test::fs::exists(scratch / "out/model.safetensors"));
}

TEST(Consolidate, OneThatWasInterruptedGoesOnWithWhatIsNotFinished) {
  const Scratch scratch;
  const Deck deck = test::tiny_deck();
  const std::string folder = test::write_sharded(scratch / "a", deck, 2), shard = folder + "/shard-00001.h5";
  const auto run = [&](const std::string& out, DType dtype = DType::f32) {
    return consolidate({.checkpoint = folder, .output = scratch / out, .dtype = dtype, .max_file_bytes = 20000});
  };
  const ConsolidateResult whole = run("whole");
  EXPECT_EQ(whole.kept, 0);
  const std::string good = test::slurp(shard);
  std::string bad = good;
  bad[bad.size() / 8] = static_cast<char>(bad[bad.size() / 8] ^ 1);  // in the middle of the weights
  test::spill(shard, bad);
  test::error_of(ExitCode::checkpoint, [&] { run("out"); });
  test::spill(shard, good);
  std::int64_t finished = 0;
  for (const std::string& file : whole.files) finished += test::fs::exists(scratch / ("out/" + file + ".finished"));
  ASSERT_GT(finished, 0);
  EXPECT_FALSE(test::fs::exists(scratch / "out/model.safetensors.index.json"));
  EXPECT_TRUE(test::has(test::error_of(ExitCode::usage, [&] { run("out", DType::bf16); }), "holds an unfinished export of"));
  const std::string record = scratch / ("out/" + whole.files.front() + ".finished"), text = test::slurp(record);
  test::spill(record, "{}");
  EXPECT_TRUE(test::has(test::error_of(ExitCode::usage, [&] { run("out"); }), "cannot be parsed"));
  test::spill(record, text);
  EXPECT_EQ(run("out").kept, finished);
  for (const std::string& file : whole.files) EXPECT_EQ(test::slurp(scratch / ("out/" + file)), test::slurp(scratch / ("whole/" + file)));
  EXPECT_EQ(std::distance(test::fs::directory_iterator(scratch / "out"), {}), std::ssize(whole.files));
}

TEST(Consolidate, WeightsOfAnotherSplitAreNotLeftBeside) {
  // transformers takes model.safetensors before an index: a stale one would be loaded in the place of the new weights.
  const Scratch scratch;
  const Deck deck = test::tiny_deck();
  const std::string folder = test::write_sharded(scratch.path(), deck, 2);
  consolidate({.checkpoint = folder, .output = scratch / "out"});
  const std::string before = test::slurp(scratch / "out/model.safetensors");
  const std::string text =
      test::error_of(ExitCode::usage, [&] { consolidate({.checkpoint = folder, .output = scratch / "out", .max_file_bytes = 20000}); });
  EXPECT_TRUE(test::has(text, "model.safetensors")) << text;
  EXPECT_EQ(test::slurp(scratch / "out/model.safetensors"), before);
  EXPECT_FALSE(test::fs::exists(scratch / "out/model.safetensors.index.json"));
  // The same split is written again, as after training on.
  EXPECT_NO_THROW(consolidate({.checkpoint = folder, .output = scratch / "out"}));
}

}  // namespace
}  // namespace tessera::consolidate_test
