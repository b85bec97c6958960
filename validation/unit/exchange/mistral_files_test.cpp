// Models in Mistral's own layout: params.json, names of its own, and queries and keys whose neighbouring rows are rotated together.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <regex>

#include "../model/random_models.hpp"
#include "../scratch.hpp"
#include "../sharded_checkpoint.hpp"
#include "exchange/consolidate.hpp"
#include "exchange/import_model.hpp"
#include "io/safetensors/safetensors.hpp"
#include "io/safetensors/safetensors_model.hpp"
#include "models/mistral_model.hpp"

namespace tessera::mistral_files_test {
namespace {

using test::Scratch;

Deck deck_of(const std::vector<std::string>& more) {
  std::vector<std::string> keys = {"model.width=30",    "model.heads=4",  "model.kv_heads=2",   "model.head_dim=12",
                                   "model.ff_width=20", "model.vocab=61", "model.norm_eps=1e-5"};
  keys.insert(keys.end(), more.begin(), more.end());
  return test::tiny_deck(keys);
}

std::string their_name(std::string name) {
  static const std::vector<std::pair<std::regex, std::string>> rows = {
      {std::regex("^model\\.embed_tokens"), "tok_embeddings"},
      {std::regex("^model\\.norm"), "norm"},
      {std::regex("^lm_head"), "output"},
      {std::regex("^model\\."), ""},
      {std::regex("self_attn\\.(.)_proj"), "attention.w$1"},
      {std::regex("input_layernorm"), "attention_norm"},
      {std::regex("post_attention_layernorm"), "ffn_norm"},
      {std::regex("mlp\\.gate_proj"), "feed_forward.w1"},
      {std::regex("mlp\\.down_proj"), "feed_forward.w2"},
      {std::regex("mlp\\.up_proj"), "feed_forward.w3"},
      {std::regex("block_sparse_moe"), "feed_forward"},
  };
  for (const auto& [pattern, text] : rows) name = std::regex_replace(name, pattern, text);
  return name;
}

/// The export of scratch / "m" in Mistral's own layout, in scratch / "own".
void write_own(const Scratch& scratch, const Deck& deck, const std::string& params) {
  const io::SafetensorsModel model(scratch / "m");
  std::vector<io::SafetensorsEntry> entries;
  for (const auto& t : model.tensors()) entries.push_back({their_name(t.name), DType::f32, t.shape});
  test::fs::create_directories(scratch / "own");
  io::SafetensorsWriter writer(scratch / "own/consolidated.safetensors", entries);
  const std::size_t half = static_cast<std::size_t>(deck.model.head_dim) / 2;
  for (const auto& t : model.tensors()) {
    std::vector<float> values(static_cast<std::size_t>(t.shape.elements())), theirs = values;
    model.read_box(t, whole_box(t.shape), values);
    theirs = values;
    if (test::has(t.name, "q_proj") || test::has(t.name, "k_proj")) {
      const auto columns = static_cast<std::size_t>(t.shape.dims[1]);
      for (std::size_t row = 0; row < static_cast<std::size_t>(t.shape.dims[0]); ++row) {
        const std::size_t head = row / (2 * half), i = row % half, second = row % (2 * half) / half;
        for (std::size_t c = 0; c < columns; ++c) theirs[(head * 2 * half + 2 * i + second) * columns + c] = values[row * columns + c];
      }
    }
    writer.append(std::as_bytes(std::span<const float>(theirs)));
  }
  writer.finish();
  test::spill(scratch / "own/params.json", params);
}

constexpr const char* dense =
    R"({"dim": 30, "n_layers": 2, "head_dim": 12, "hidden_dim": 20, "n_heads": 4, "n_kv_heads": 2, "norm_eps": 1e-05,
  "vocab_size": 61, "rope_theta": 10000.0)";

struct Case {
  std::vector<std::string> keys;
  std::string params;
};

std::vector<Case> cases() {
  return {{{}, dense + std::string("}")},
          {{"model.window=5"}, dense + std::string(R"(, "sliding_window": 5, "max_seq_len": 64, "model_type": "transformer"})")},
          {{"model.pattern=GL", "model.kinds=[{name = \"G\"}, {name = \"L\", window = 5}]"},
           dense + std::string(R"(, "sliding_window": [null, 5]})")},
          {{"model.tied=true"}, dense + std::string(R"(, "tied_embeddings": true})")},
          {{"model.experts=3", "model.experts_per_token=2", "model.expert_ff_width=20", "model.normalize_top_k=true"},
           dense + std::string(R"(, "moe": {"num_experts": 3, "num_experts_per_tok": 2}})")}};
}

TEST(MistralFiles, ComeBackAsTheExportThatTheyWereMadeOf) {
  for (const Case& c : cases()) {
    const Scratch scratch;
    const Deck deck = deck_of(c.keys);
    consolidate({.checkpoint = test::write_sharded(scratch / "a", deck, 3), .output = scratch / "m"});
    write_own(scratch, deck, c.params);
    import_model({.model = scratch / "own", .run = scratch / "run", .overrides = {}});
    consolidate({.checkpoint = scratch / "run/checkpoints/latest", .output = scratch / "out"});
    EXPECT_EQ(test::slurp(scratch / "m/model.safetensors"), test::slurp(scratch / "out/model.safetensors")) << c.params;
  }
}

TEST(MistralFiles, OtherKeysAndTensorsAreRefusedByName) {
  const Scratch scratch;
  const Deck deck = deck_of({});
  consolidate({.checkpoint = test::write_sharded(scratch / "a", deck, 3), .output = scratch / "m"});
  const auto refusal = [&](ExitCode code, const std::string& params) {
    write_own(scratch, deck, params);
    return test::error_of(code, [&] { import_model({.model = scratch / "own", .run = scratch / "run", .overrides = {}}); });
  };
  const std::string all = dense, without = all.substr(0, all.find(", \"rope_theta\""));
  EXPECT_HAS(refusal(ExitCode::usage, without + "}"), "params.json: rope_theta: is missing, and readers assume different values");
  EXPECT_HAS(refusal(ExitCode::usage, all + R"(, "yarn": {"factor": 16}})"),
             "yarn: stretches the rotation, which cannot be read from params.json");
  EXPECT_HAS(refusal(ExitCode::usage, all + R"(, "vision_encoder": {"hidden_size": 8}})"), "vision_encoder: belongs to a model of images");
  EXPECT_HAS(refusal(ExitCode::usage, all + R"(, "n_head": 4})"), "n_head: is not a known key of params.json");
  EXPECT_HAS(refusal(ExitCode::usage, all + R"(, "moe": {"num_experts": 3, "num_experts_per_tok": 2, "route_every_n": 2}})"),
             "route_every_n: cannot be read from params.json");
  EXPECT_HAS(refusal(ExitCode::usage, all + R"(, "sliding_window": [5, null, 5]})"), "has 3 numbers, of which 2 layers are not a multiple");
  EXPECT_HAS(refusal(ExitCode::usage, all + R"(, "activation": "gelu"})"), "activation: \"gelu\" cannot be read");
  EXPECT_HAS(refusal(ExitCode::data, std::regex_replace(all, std::regex("\"hidden_dim\": 20"), "\"hidden_dim\": 24") + "}"),
             "its tensors do not match the Mistral in its params.json");
}

TEST(MistralFiles, AreReadWhereNoneOfTransformersStandBesideThem) {
  const Scratch scratch;
  const Deck deck = deck_of({});
  consolidate({.checkpoint = test::write_sharded(scratch / "a", deck, 3), .output = scratch / "m"});
  write_own(scratch, deck, dense + std::string("}"));
  EXPECT_TRUE(is_mistral_model(scratch / "own"));
  EXPECT_TRUE(io::has_model(scratch / "own"));
  EXPECT_FALSE(is_mistral_model(scratch / "m"));
  test::fs::create_symlink("nowhere", scratch / "own/model.safetensors");
  EXPECT_FALSE(is_mistral_model(scratch / "own")) << "it is there, and whoever reads it says what is wrong with it";
  test::fs::remove(scratch / "own/model.safetensors");
  test::fs::copy_file(scratch / "m/model.safetensors", scratch / "own/model.safetensors");
  EXPECT_FALSE(is_mistral_model(scratch / "own"));
}

}  // namespace
}  // namespace tessera::mistral_files_test
