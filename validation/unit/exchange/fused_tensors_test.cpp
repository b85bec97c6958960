// Tensors of files in which several of ours lie: which part each is, read and written.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <string_view>

#include "../model/random_models.hpp"
#include "../scratch.hpp"
#include "../sharded_checkpoint.hpp"
#include "exchange/consolidate.hpp"
#include "exchange/import_model.hpp"
#include "exchange/initial_weights.hpp"
#include "exchange/lora_merge.hpp"
#include "io/safetensors/safetensors.hpp"
#include "model/table/huggingface.hpp"

namespace tessera::fused_tensors_test {
namespace {

using test::Scratch;

const std::vector<std::string> granitemoe = {"model.experts=3", "model.expert_ff_width=20", "model.residual_scale=0.5",
                                             "model.attention_scale=0.25"};

const std::vector<std::string> granite4_dense = {"model.residual_scale=0.5", "model.positions=none"};
const std::vector<std::string> granite4 = {"model.experts=3", "model.expert_ff_width=20", "model.shared_ff_width=12",
                                           "model.shared_gate=false", "model.positions=none"};

const std::vector<std::string> gpt_oss = {"model.experts=3",
                                          "model.expert_ff_width=20",
                                          "model.expert_bias=true",
                                          "model.qkv_bias=true",
                                          "model.attention_out_bias=true",
                                          "model.attention_sinks=true",
                                          "model.activation=clamped_silu"};

Deck deck_with(std::vector<std::string> keys, const std::vector<std::string>& more = {}) {
  keys.insert(keys.end(), more.begin(), more.end());
  return test::tiny_deck(keys);
}

const ExportTensor& find(const std::vector<ExportTensor>& tensors, std::string_view name) {
  const auto found = std::ranges::find(tensors, name, &ExportTensor::name);
  if (found == tensors.end()) throw std::runtime_error("no " + std::string(name));
  return *found;
}

std::string phi3_config(const ModelKeys& m) {
  return fmt::format(R"({{"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "hidden_size": {}, "num_hidden_layers": {},
    "num_attention_heads": {}, "num_key_value_heads": {}, "head_dim": {}, "intermediate_size": {}, "vocab_size": {}, "rms_norm_eps": {},
    "sliding_window": null}})",
                     m.width, m.layers, m.heads, m.kv_heads, m.head_dim, m.ff_width, m.vocab, m.norm_eps);
}

/// The deck's Llama as a Phi-3, with the values of write_sharded; the test may change what is written.
void write_phi3(const std::string& folder, const Deck& deck, const std::function<void(std::vector<ExportTensor>&)>& edit = {}) {
  test::fs::create_directories(folder);
  std::vector<ExportTensor> tensors = tensors_by(TensorNames(family_named("phi3")), parameter_table(deck.model));
  if (edit) edit(tensors);
  std::vector<io::SafetensorsEntry> entries;
  for (const ExportTensor& t : tensors) entries.push_back({t.name, DType::f32, t.shape});
  io::SafetensorsWriter writer(folder + "/model.safetensors", entries);
  for (const ExportTensor& t : tensors) {
    std::vector<float> values;
    for (const TensorPart& part : t.parts)
      for (std::int64_t i = 0; i < part.shape.elements(); ++i) values.push_back(test::value_at("master", part.ours, i));
    values.resize(static_cast<std::size_t>(t.shape.elements()));
    writer.append(std::as_bytes(std::span<const float>(values)));
  }
  writer.finish();
  test::spill(folder + "/config.json", phi3_config(deck.model));
}

TEST(FusedTensors, OfRowsAndOfExperts) {
  const ModelKeys m = test::tiny_deck({"model.kv_heads=2"}).model;
  const std::int64_t C = m.width, Q = m.heads * m.head_dim, K = m.kv_heads * m.head_dim;
  const auto phi = tensors_by(TensorNames(family_named("phi3")), parameter_table(m));
  const ExportTensor& qkv = find(phi, "model.layers.1.self_attn.qkv_proj.weight");
  EXPECT_EQ(qkv.shape, (Shape{Q + 2 * K, C}));
  ASSERT_EQ(qkv.parts.size(), 3u);
  EXPECT_EQ(qkv.parts[2].ours, "layers.1.attention.wv");
  EXPECT_EQ(qkv.parts[2].box, (Box{{Q + K, 0}, {K, C}}));
  EXPECT_EQ(qkv.parts[2].of_theirs({{1, 3}, {2, 5}}), (Box{{Q + K + 1, 3}, {2, 5}}));
  EXPECT_EQ(find(phi, "model.layers.0.mlp.gate_up_proj.weight").parts[1].box, (Box{{m.ff_width, 0}, {m.ff_width, C}}));
  EXPECT_EQ(phi.size(), parameter_table(m).size() - 3 * static_cast<std::size_t>(m.layers));

  for (const std::int64_t experts : {1, 3}) {
    const Deck moe = deck_with(granitemoe, {fmt::format("model.experts={}", experts), "model.experts_per_token=1"});
    const std::int64_t F = moe.model.expert_ff_width, last = experts - 1;
    const auto tensors = huggingface_tensors(moe, parameter_table(moe.model));
    const ExportTensor& in = find(tensors, "model.layers.0.block_sparse_moe.input_linear.weight");
    const ExportTensor& out = find(tensors, "model.layers.0.block_sparse_moe.output_linear.weight");
    EXPECT_EQ(in.shape, (Shape{experts, 2 * F, C}));
    EXPECT_EQ(out.shape, (Shape{experts, C, F}));
    EXPECT_EQ(in.parts.back().ours, fmt::format("layers.0.moe.experts.{}.w_up", last));
    EXPECT_EQ(in.parts.back().box, (Box{{last, F, 0}, {1, F, C}}));
    EXPECT_EQ(in.parts.back().of_theirs({{2, 1}, {3, 4}}), (Box{{last, F + 2, 1}, {1, 3, 4}}));
    EXPECT_EQ(out.parts.back().box, (Box{{last, 0, 0}, {1, C, F}}));
  }
}

TEST(FusedTensors, OfExpertsComeBackByteForByte) {
  for (const auto& [keys, type] : {std::pair(granitemoe, DType::f32),
                                   {granitemoe, DType::bf16},
                                   {gpt_oss, DType::f32},
                                   {gpt_oss, DType::bf16},
                                   {granite4, DType::f32},
                                   {granite4, DType::bf16},
                                   {granite4_dense, DType::f32}}) {
    const Scratch scratch;
    const Deck deck = deck_with(keys);
    consolidate({.checkpoint = test::write_sharded(scratch / "a", deck, 3), .output = scratch / "m", .dtype = type});
    import_model({.model = scratch / "m", .run = scratch / "run", .overrides = {}});
    consolidate({.checkpoint = scratch / "run/checkpoints/latest", .output = scratch / "out", .dtype = type});
    for (const char* file : {"model.safetensors", "config.json"})
      EXPECT_EQ(test::slurp(scratch / "m/" + file), test::slurp(scratch / "out/" + file)) << file;
  }
}

TEST(FusedTensors, ValuesOfExpertsFollowOneAnother) {
  const Scratch scratch;
  const Deck deck = deck_with(granitemoe);
  const std::string folder = test::write_sharded(scratch.path(), deck, 2), in = "model.layers.1.block_sparse_moe.input_linear.weight";
  consolidate({.checkpoint = folder, .output = scratch / "m"});
  const io::SafetensorsModel model(scratch / "m");
  std::vector<float> values(static_cast<std::size_t>(model.find(in)->shape.elements()));
  model.read_box(*model.find(in), whole_box(model.find(in)->shape), values);
  std::size_t at = 0;
  for (const char* ours : {"0.w_gate", "0.w_up", "1.w_gate", "1.w_up", "2.w_gate", "2.w_up"})
    for (std::int64_t i = 0; i < 20 * deck.model.width; ++i)
      ASSERT_EQ(values[at++], test::value_at("master", fmt::format("layers.1.moe.experts.{}", ours), i)) << ours;
  // A part by our name asks for the tensor.
  const ConsolidateResult part =
      consolidate({.checkpoint = folder, .output = scratch / "part", .tensors = {"layers.1.moe.experts.2.w_up"}});
  EXPECT_EQ(part.tensors, 1);
  EXPECT_EQ(io::SafetensorsModel(scratch / "part").find(in)->shape, model.find(in)->shape);
}

/// Values of a part of a tensor of the export that is turned or in turns, as its kind says where they are.
void expect_gpt_oss(const std::vector<float>& values, const Shape& theirs, const std::string& ours, std::int64_t expert, std::int64_t first,
                    std::int64_t step, const Shape& shape) {
  const bool matrix = shape.dims.size() == 2;
  const std::int64_t columns = theirs.dims.back(), inputs = matrix ? shape.dims[1] : 1;
  for (std::int64_t n = 0; n < shape.dims[0]; ++n)
    for (std::int64_t k = 0; k < inputs; ++k)
      ASSERT_EQ(values[static_cast<std::size_t>((expert * inputs + k) * columns + first + step * n)],
                test::value_at("master", ours, n * inputs + k))
          << ours << " " << n << " " << k;
}

TEST(FusedTensors, OfAGptOssAreTurnedAndGatesInTurns) {
  const Scratch scratch;
  const Deck deck = deck_with(gpt_oss);
  const std::int64_t F = deck.model.expert_ff_width, C = deck.model.width;
  consolidate({.checkpoint = test::write_sharded(scratch / "a", deck, 2), .output = scratch / "m"});
  const io::SafetensorsModel model(scratch / "m");
  const auto values_of = [&](const std::string& name, const Shape& shape) {
    const auto* tensor = model.find("model.layers.1.mlp.experts." + name);
    EXPECT_TRUE(tensor && tensor->shape == shape) << name;
    std::vector<float> values(static_cast<std::size_t>(shape.elements()));
    if (tensor) model.read_box(*tensor, whole_box(shape), values);
    return values;
  };
  const Shape in{3, C, 2 * F}, out{3, F, C}, in_bias{3, 2 * F}, out_bias{3, C};
  for (std::int64_t e = 0; e < 3; ++e) {
    const std::string ours = fmt::format("layers.1.moe.experts.{}.", e);
    expect_gpt_oss(values_of("gate_up_proj", in), in, ours + "w_gate", e, 0, 2, {F, C});
    expect_gpt_oss(values_of("gate_up_proj", in), in, ours + "w_up", e, 1, 2, {F, C});
    expect_gpt_oss(values_of("down_proj", out), out, ours + "w_down", e, 0, 1, {C, F});
    expect_gpt_oss(values_of("gate_up_proj_bias", in_bias), in_bias, ours + "b_gate", e, 0, 2, {F});
    expect_gpt_oss(values_of("gate_up_proj_bias", in_bias), in_bias, ours + "b_up", e, 1, 2, {F});
    expect_gpt_oss(values_of("down_proj_bias", out_bias), out_bias, ours + "b_down", e, 0, 1, {C});
  }
}

TEST(FusedTensors, AnyPieceOfATurnedTensorIsRead) {
  const Scratch scratch;
  const Deck deck = deck_with(gpt_oss);
  consolidate({.checkpoint = test::write_sharded(scratch / "a", deck, 1), .output = scratch / "m"});
  const InitialWeights weights(deck_with(gpt_oss, {"run.init=" + scratch / "m"}), false);
  for (const Parameter& p : parameter_table(deck.model)) {
    Box box = whole_box(p.shape);
    const std::int64_t width = p.shape.elements() / p.shape.dims[0];
    box.start[0] = 1, box.count[0] -= 1;
    if (p.shape.dims.size() > 1) box.start[1] = 1, box.count[1] -= 2;
    for (const std::int64_t at : {std::int64_t{0}, std::int64_t{1}, box.elements() / 2}) {
      std::vector<float> got(static_cast<std::size_t>(box.elements() - at));
      weights.read(p, box, at, got);
      for (std::size_t i = 0; i < got.size(); ++i) {
        const std::int64_t inner = at + static_cast<std::int64_t>(i), columns = box.elements() / box.count[0];
        const std::int64_t ours = (1 + inner / columns) * width + inner % columns + (columns == width ? 0 : 1);
        ASSERT_EQ(got[i], test::value_at("master", p.name, ours)) << p.name << " " << i;
      }
    }
  }
}

TEST(FusedTensors, APhi3IsReadAndWrittenAsTheLlamaThatItIs) {
  const Scratch scratch;
  const Deck plain = test::tiny_deck({"model.kv_heads=2"});
  write_phi3(scratch / "phi", plain);
  const Deck deck = test::tiny_deck({"model.kv_heads=2", "run.init=" + scratch / "phi"});
  const InitialWeights weights(deck, false);
  for (const Parameter& p : parameter_table(deck.model)) {
    Box box = whole_box(p.shape);
    box.start[0] = box.count[0] / 2, box.count[0] -= box.start[0];
    std::vector<float> got(static_cast<std::size_t>(box.elements() - 1));
    weights.read(p, box, 1, got);
    const std::int64_t first = box.start[0] * (p.shape.elements() / p.shape.dims[0]) + 1;
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_EQ(got[i], test::value_at("master", p.name, first + static_cast<std::int64_t>(i))) << p.name << " " << i;
  }
  import_model({.model = scratch / "phi", .run = scratch / "run", .overrides = {}});
  consolidate({.checkpoint = scratch / "run/checkpoints/latest", .output = scratch / "out"});
  consolidate({.checkpoint = test::write_sharded(scratch / "b", plain, 1), .output = scratch / "llama"});
  EXPECT_EQ(test::slurp(scratch / "out/model.safetensors"), test::slurp(scratch / "llama/model.safetensors"));
}

TEST(FusedTensors, WhatIsWrongIsNamedAsTheFilesNameIt) {
  const Scratch scratch;
  const Deck plain = test::tiny_deck({"model.kv_heads=2"}), deck = test::tiny_deck({"model.kv_heads=2", "run.init=" + scratch / "phi"});
  const std::string qkv = "model.layers.0.self_attn.qkv_proj.weight", up = "model.layers.1.mlp.gate_up_proj.weight";
  write_phi3(scratch / "phi", plain, [&](std::vector<ExportTensor>& tensors) {
    std::erase_if(tensors, [&](const ExportTensor& t) { return t.name == qkv; });
    for (ExportTensor& t : tensors)
      if (t.name == up) t.shape.dims[0] -= 1, t.parts.clear();
    tensors.push_back({"model.layers.0.self_attn.q_proj.weight", {2}, {}});
  });
  const std::string text = test::error_of(ExitCode::data, [&] { InitialWeights(deck, false); });
  EXPECT_TRUE(test::has(text, "1 tensor is missing: " + qkv)) << text;
  EXPECT_TRUE(test::has(text, fmt::format("1 of another shape: {} is {} x {} and must be {} x {}", up, 2 * plain.model.ff_width - 1,
                                          plain.model.width, 2 * plain.model.ff_width, plain.model.width)))
      << text;
  EXPECT_TRUE(test::has(text, "1 that this class of model does not have: model.layers.0.self_attn.q_proj.weight")) << text;
}

TEST(FusedTensors, AdaptersBesidePartsAreMergedAndNotWrittenAlone) {
  const Scratch scratch;
  const Deck deck = deck_with(granitemoe, {"lora.rank=2", R"(lora.targets=["wq", "experts.w_up"])"});
  const std::string folder = test::write_sharded(scratch / "run/checkpoints", deck, 2);
  const std::string refused =
      test::error_of(ExitCode::usage, [&] { consolidate({.checkpoint = folder, .output = scratch / "a", .adapter = true}); });
  EXPECT_TRUE(test::has(refused, "layers.0.moe.experts.0.w_up of model.layers.0.block_sparse_moe.input_linear.weight")) << refused;
  EXPECT_TRUE(test::has(refused, "6 matrices with an adapter") && test::has(refused, "Leave --adapter out")) << refused;
  EXPECT_FALSE(test::fs::exists(scratch / "a"));
  consolidate({.checkpoint = folder, .output = scratch / "merged"});
  const io::SafetensorsModel model(scratch / "merged");
  const io::CheckpointReader reader(folder);
  LoraMerge merge(reader, deck.model.lora);
  for (const ExportTensor& t : huggingface_tensors(deck, parameter_table(deck.model)))
    for (const TensorPart& part : t.parts) {
      std::vector<float> want(static_cast<std::size_t>(part.shape.elements())), got(want.size());
      for (std::size_t i = 0; i < want.size(); ++i) want[i] = test::value_at("master", part.ours, static_cast<std::int64_t>(i));
      if (merge.adapts(part.ours)) merge.add(part.ours, 0, want);
      model.read_box(*model.find(t.name), part.box, got);
      ASSERT_EQ(want, got) << part.ours;
    }
  const Deck plain = deck_with(granitemoe, {"lora.rank=2", R"(lora.targets=["wq"])"});
  EXPECT_NO_THROW(
      consolidate({.checkpoint = test::write_sharded(scratch / "other/checkpoints", plain, 1), .output = scratch / "b", .adapter = true}));
}

TEST(FusedTensors, AdaptersBesideAPhi3AreThoseOfItsModules) {
  const Scratch scratch;
  write_phi3(scratch / "phi", test::tiny_deck());
  const auto adapter = [&](const std::string& run, const std::string& targets) {
    const Deck deck = test::tiny_deck({"lora.rank=2", "lora.targets=" + targets});
    consolidate(
        {.checkpoint = test::write_sharded(scratch / run + "/checkpoints", deck, 1), .output = scratch / run + "/out", .adapter = true});
    return scratch / run + "/out";
  };
  const auto begin = [&](const std::string& folder, const std::string& targets) {
    InitialWeights(test::tiny_deck({"run.init=" + scratch / "phi", "lora.rank=2", "lora.targets=" + targets, "lora.init=" + folder}),
                   false);
  };
  const std::string fused = R"(["wk", "wo"])", whole = R"(["wo", "w_down"])";
  const std::string of_llama = adapter("llama", fused);
  const std::string refused = test::error_of(ExitCode::usage, [&] { begin(of_llama, fused); });
  EXPECT_TRUE(test::has(refused, "layers.0.attention.wk of model.layers.0.self_attn.qkv_proj.weight")) << refused;
  EXPECT_TRUE(test::has(refused, "merge_and_unload")) << refused;
  EXPECT_NO_THROW(begin(adapter("whole", whole), whole));
  // A run that began with one has kept its config.json.
  for (const char* run : {"kept", "kept-whole"}) {
    test::fs::create_directories(scratch / run + "/tokenizer");
    test::spill(scratch / run + "/tokenizer/config.json", phi3_config(test::tiny_deck().model));
  }
  EXPECT_TRUE(test::has(test::error_of(ExitCode::usage, [&] { adapter("kept", fused); }), "qkv_proj.weight"));
  EXPECT_NO_THROW(adapter("kept-whole", whole));
}

}  // namespace
}  // namespace tessera::fused_tensors_test
