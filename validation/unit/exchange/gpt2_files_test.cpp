// GPT-2's files: matrices that lie turned and one after the other, names without their prefix, masks beside weights; and llm.c's
// checkpoints.
#include <gtest/gtest.h>

#include <cstring>

#include "../model/random_models.hpp"
#include "../scratch.hpp"
#include "../sharded_checkpoint.hpp"
#include "exchange/consolidate.hpp"
#include "exchange/import_model.hpp"
#include "exchange/initial_weights.hpp"
#include "io/safetensors/safetensors.hpp"
#include "io/safetensors/safetensors_model.hpp"
#include "model/table/huggingface.hpp"
#include "models/llmc_model.hpp"

namespace tessera::gpt2_files_test {
namespace {

using test::Scratch;

Deck gpt2(const std::vector<std::string>& more = {}) {
  std::vector<std::string> keys = {"model.qkv_bias=true",
                                   "model.attention_out_bias=true",
                                   "model.mlp_bias=true",
                                   "model.gated=false",
                                   "model.norm_form=layer_norm",
                                   "model.activation=gelu_tanh",
                                   "model.positions=none",
                                   "model.learned_positions=24",
                                   "model.tied=true",
                                   "model.width=32",
                                   "model.heads=4",
                                   "model.kv_heads=4",
                                   "model.head_dim=8",
                                   "model.ff_width=128",
                                   "model.vocab=61",
                                   "batch.sequence_length=16"};
  keys.insert(keys.end(), more.begin(), more.end());
  return test::tiny_deck(keys);
}

/// An export of the deck's model with the values of write_sharded.
void write_model(const Scratch& scratch, const Deck& deck, DType dtype = DType::f32) {
  consolidate({.checkpoint = test::write_sharded(scratch / "a", deck, 3), .output = scratch / "m", .dtype = dtype});
}

void expect_comes_back(const Scratch& scratch, const std::string& model, DType dtype) {
  import_model({.model = model, .run = scratch / "run", .overrides = {}});
  consolidate({.checkpoint = scratch / "run/checkpoints/latest", .output = scratch / "out", .dtype = dtype});
  for (const char* file : {"model.safetensors", "config.json"})
    EXPECT_EQ(test::slurp(scratch / "m/" + file), test::slurp(scratch / "out/" + file)) << file;
}

TEST(Gpt2Files, ComeBackByteForByte) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::vector<std::string>& keys : std::vector<std::vector<std::string>>{{}, {"model.tied=false", "model.ff_width=50"}}) {
      const Scratch scratch;
      write_model(scratch, gpt2(keys), dtype);
      expect_comes_back(scratch, scratch / "m", dtype);
    }
}

TEST(Gpt2Files, QueriesKeysAndValuesAreColumnsOfOneTensor) {
  const Scratch scratch;
  const Deck deck = gpt2();
  write_model(scratch, deck);
  const io::SafetensorsModel model(scratch / "m");
  const auto* tensor = model.find("transformer.h.1.attn.c_attn.weight");
  ASSERT_TRUE(tensor && tensor->shape == Shape({32, 96}));
  std::vector<float> values(32 * 96);
  model.read_box(*tensor, whole_box(tensor->shape), values);
  for (std::size_t part = 0; part < 3; ++part)
    for (std::size_t out = 0; out < 32; ++out)
      for (std::size_t in = 0; in < 32; ++in)
        ASSERT_EQ(values[in * 96 + part * 32 + out],
                  test::value_at("master", std::string("layers.1.attention.w") + "qkv"[part], static_cast<std::int64_t>(out * 32 + in)));
}

/// The model's file with other names, and more tensors.
void rewrite(const Scratch& scratch, const std::string& prefix, const std::vector<std::string>& more) {
  const io::SafetensorsModel model(scratch / "m");
  std::vector<io::SafetensorsEntry> entries;
  for (const auto& t : model.tensors())
    entries.push_back({t.name.substr(t.name.starts_with(prefix) ? prefix.size() : 0), DType::f32, t.shape});
  for (const std::string& name : more) entries.push_back({name, DType::f32, {1, 1, 4, 4}});
  test::fs::create_directories(scratch / "other");
  test::fs::copy_file(scratch / "m/config.json", scratch / "other/config.json");
  io::SafetensorsWriter writer(scratch / "other/model.safetensors", entries);
  for (const auto& t : model.tensors()) {
    std::vector<float> values(static_cast<std::size_t>(t.shape.elements()));
    model.read_box(t, whole_box(t.shape), values);
    writer.append(std::as_bytes(std::span<const float>(values)));
  }
  const std::vector<float> mask(16);
  for (std::size_t i = 0; i < more.size(); ++i) writer.append(std::as_bytes(std::span<const float>(mask)));
  writer.finish();
}

TEST(Gpt2Files, NamesMayLackTheirPrefixAndMasksArePassedOver) {
  for (const std::string prefix : {"", "transformer."}) {
    const Scratch scratch;
    write_model(scratch, gpt2());
    const std::string left = prefix.empty() ? "transformer." : "";
    rewrite(scratch, prefix, {left + "h.0.attn.bias", left + "h.1.attn.masked_bias"});
    expect_comes_back(scratch, scratch / "other", DType::f32);
  }
  const Scratch scratch;
  write_model(scratch, gpt2());
  rewrite(scratch, "transformer.", {"h.0.attn.biases"});
  const std::string text =
      test::error_of(ExitCode::data, [&] { import_model({.model = scratch / "other", .run = scratch / "run", .overrides = {}}); });
  EXPECT_TRUE(test::has(text, "1 that this class of model does not have: h.0.attn.biases")) << text;
}

TEST(Gpt2Files, AHeadOfTheirOwnIsTheModels) {
  const Scratch scratch;
  const Deck deck = gpt2({"model.tied=false"});
  write_model(scratch, deck);
  std::string config = test::slurp(scratch / "m/config.json");
  const std::string said = "\"tie_word_embeddings\": false";
  ASSERT_TRUE(test::has(config, said));
  test::spill(scratch / "m/config.json", config.replace(config.find(said), said.size(), "\"tie_word_embeddings\": true"));
  import_model({.model = scratch / "m", .run = scratch / "run", .overrides = {}});
  consolidate({.checkpoint = scratch / "run/checkpoints/latest", .output = scratch / "out"});
  EXPECT_EQ(test::slurp(scratch / "m/model.safetensors"), test::slurp(scratch / "out/model.safetensors"));
}

// ---- llm.c ----

/// The model of scratch / "m" as llm.c writes it, with rows of 3 tokens more that nobody reads.
std::string write_llmc(const Scratch& scratch, const Deck& deck, std::vector<std::int32_t> header = {}) {
  const ModelKeys& m = deck.model;
  const io::SafetensorsModel model(scratch / "m");
  if (header.empty())
    header = {
        20240326, 3, 24, 61, static_cast<std::int32_t>(m.layers), static_cast<std::int32_t>(m.heads), static_cast<std::int32_t>(m.width),
        64};
  header.resize(256);
  std::string bytes(reinterpret_cast<const char*>(header.data()), 1024);
  const auto put = [&](const std::string& name) {
    const auto* t = model.find("transformer." + name);
    std::vector<float> values(static_cast<std::size_t>(t->shape.elements()));
    model.read_box(*t, whole_box(t->shape), values);
    if (t->shape.dims.size() == 2 && name.starts_with("h.")) {  // turned in transformers' files alone
      const std::vector<float> theirs = values;
      const auto in = static_cast<std::size_t>(t->shape.dims[0]), out = static_cast<std::size_t>(t->shape.dims[1]);
      for (std::size_t o = 0; o < out; ++o)
        for (std::size_t i = 0; i < in; ++i) values[o * in + i] = theirs[i * out + o];
    }
    if (name == "wte.weight") values.resize(static_cast<std::size_t>(64 * m.width), 9.0f);
    bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  };
  put("wte.weight"), put("wpe.weight");
  for (const char* name : {"ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias",
                           "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias"})
    for (std::int64_t layer = 0; layer < m.layers; ++layer) put(fmt::format("h.{}.{}", layer, name));
  put("ln_f.weight"), put("ln_f.bias");
  test::spill(scratch / "gpt2.bin", bytes);
  return scratch / "gpt2.bin";
}

TEST(Llmc, ACheckpointIsReadByItsHeader) {
  const Scratch scratch;
  const Deck deck = gpt2();
  write_model(scratch, deck);
  const std::string file = write_llmc(scratch, deck);
  import_model({.model = file, .run = scratch / "run", .overrides = {}});
  consolidate({.checkpoint = scratch / "run/checkpoints/latest", .output = scratch / "out"});
  EXPECT_EQ(test::slurp(scratch / "m/model.safetensors"), test::slurp(scratch / "out/model.safetensors"));
}

TEST(Llmc, WhatIsNoSuchCheckpointIsNamed) {
  const Scratch scratch;
  const Deck deck = gpt2();
  write_model(scratch, deck);
  const std::string file = write_llmc(scratch, deck), whole = test::slurp(file);
  const auto layers = static_cast<std::int32_t>(deck.model.layers);
  const auto with = [&](std::initializer_list<std::int32_t> header) {
    std::string bytes = whole;
    std::memcpy(bytes.data(), std::data(header), header.size() * sizeof(std::int32_t));
    return bytes;
  };
  const std::pair<std::string, std::string> cases[] = {
      {with({20240327}), "it is not a checkpoint of llm.c's GPT-2: it begins with 20240327, but such a file begins with 20240326"},
      {with({20240520}), "it holds tokens of llm.c, not a model. Name it in data.train."},
      {with({20240326, 1}), "in version 1, but versions 3 (fp32) and 5 (bf16) are read"},
      {with({20240326, 3, 24, 61, layers, 5}), "channels 32 is not a multiple of num_heads 5"},
      {with({20240326, 3, 24, 61, layers, 0}), "num_heads is 0, which is not between 1 and"},
      {with({20240326, 3, 24, 61, -1}), "num_layers is -1, which is not between 1 and 10000"},
      {with({20240326, 3, 24, 65}), "padded_vocab_size 64 is less than vocab_size 65"},
      {with({20240326, 5}), "but the file has " + std::to_string(whole.size()) + ": it is too long"},
      {whole.substr(0, whole.size() - 1), "but the file has " + std::to_string(whole.size() - 1) + ": it is truncated"},
      {whole + "x", ": it is too long. Copy or make it again."},
      {whole.substr(0, 1000), "it is shorter than the header of a checkpoint of llm.c, 1024 bytes"},
      {"", "it is shorter than the header"}};
  for (const auto& [bytes, says] : cases) {
    test::spill(file, bytes);
    const std::string text =
        test::error_of(ExitCode::usage, [&] { import_model({.model = file, .run = scratch / "run", .overrides = {}}); });
    EXPECT_TRUE(test::has(text, says)) << text;
    EXPECT_TRUE(test::has(text, file)) << text;
  }
  const std::string none =
      test::error_of(ExitCode::usage, [&] { import_model({.model = scratch / "no.bin", .run = scratch / "run", .overrides = {}}); });
  EXPECT_TRUE(test::has(none, "no.bin")) << none;
}

}  // namespace
}  // namespace tessera::gpt2_files_test
