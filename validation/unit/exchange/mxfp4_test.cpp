// Weights of experts in MXFP4 are read to the number that each code means.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "../model/random_models.hpp"
#include "../scratch.hpp"
#include "exchange/consolidate.hpp"
#include "exchange/import_model.hpp"
#include "exchange/initial_weights.hpp"
#include "families/write_config.hpp"
#include "model/table/huggingface.hpp"

namespace tessera::mxfp4_test {
namespace {

using test::Scratch;

Deck gpt_oss(const std::vector<std::string>& more = {}) {
  std::vector<std::string> keys = {"model.width=32",
                                   "model.experts=2",
                                   "model.expert_ff_width=64",
                                   "model.expert_bias=true",
                                   "model.qkv_bias=true",
                                   "model.attention_out_bias=true",
                                   "model.layers=1",
                                   "model.attention_sinks=true",
                                   "model.activation=clamped_silu"};
  keys.insert(keys.end(), more.begin(), more.end());
  return test::tiny_deck(keys);
}

/// Any byte, and scales of 2^-8 to 2^7.
unsigned byte_at(std::size_t i) { return static_cast<unsigned>((i * 167 + i / 251) % 256); }
unsigned scale_at(std::size_t i) { return 119 + static_cast<unsigned>(i * 7 % 16); }

/// What the code in half `at` of the bytes means, times the scale of its block.
float meant(std::size_t at) {
  const unsigned byte = byte_at(at / 2), code = at % 2 == 0 ? byte % 16 : byte / 16;
  constexpr std::array<double, 16> meanings = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};
  return static_cast<float>(meanings[code] * std::exp2(static_cast<int>(scale_at(at / 32)) - 127));
}

struct Raw {
  std::string name, type;
  Shape shape;
  std::vector<std::byte> bytes;
};

/// The deck's model with its experts' matrices in MXFP4, and all else 0.25; `edit` may change the tensors.
void write_model(const std::string& folder, const Deck& deck, const std::function<void(std::vector<Raw>&)>& edit = {},
                 const std::string& method = "mxfp4") {
  test::fs::create_directories(folder);
  std::vector<Raw> all;
  for (const ExportTensor& t : huggingface_tensors(deck, parameter_table(deck.model))) {
    if (t.shape.dims.size() != 3) {
      Raw& raw = all.emplace_back(t.name, "F32", t.shape);
      const std::vector<float> values(static_cast<std::size_t>(t.shape.elements()), 0.25f);
      raw.bytes.assign(std::as_bytes(std::span(values)).begin(), std::as_bytes(std::span(values)).end());
      continue;
    }
    const std::int64_t E = t.shape.dims[0], in = t.shape.dims[1], out = t.shape.dims[2];
    Raw blocks{t.name + "_blocks", "U8", {E, out, in / 32, 16}, {}}, scales{t.name + "_scales", "U8", {E, out, in / 32}, {}};
    for (std::size_t i = 0; i < static_cast<std::size_t>(blocks.shape.elements()); ++i) blocks.bytes.push_back(std::byte(byte_at(i)));
    for (std::size_t i = 0; i < static_cast<std::size_t>(scales.shape.elements()); ++i) scales.bytes.push_back(std::byte(scale_at(i)));
    all.push_back(std::move(blocks)), all.push_back(std::move(scales));
  }
  if (edit) edit(all);
  std::string header = "{", body;
  for (const Raw& raw : all) {
    std::string dims;
    for (const std::int64_t n : raw.shape.dims) dims += (dims.empty() ? "" : ",") + std::to_string(n);
    header += fmt::format("{}\"{}\":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", header.size() > 1 ? "," : "", raw.name,
                          raw.type, dims, body.size(), body.size() + raw.bytes.size());
    body.append(reinterpret_cast<const char*>(raw.bytes.data()), raw.bytes.size());
  }
  header += "}";
  const std::uint64_t size = header.size();
  test::spill(folder + "/model.safetensors", std::string(reinterpret_cast<const char*>(&size), 8) + header + body);
  std::string config = huggingface_config(deck, DType::bf16, {});
  config.insert(config.find('{') + 1,
                fmt::format(R"("quantization_config": {{"quant_method": "{}", "modules_to_not_convert": []}},)", method));
  test::spill(folder + "/config.json", config);
}

TEST(Mxfp4, EachCodeIsReadAsWhatItMeans) {
  const Scratch scratch;
  write_model(scratch / "m", gpt_oss());
  const Deck deck = gpt_oss({"run.init=" + scratch / "m"});
  const InitialWeights weights(deck, false);
  const auto C = static_cast<std::size_t>(deck.model.width), F = static_cast<std::size_t>(deck.model.expert_ff_width);
  for (const Parameter& p : parameter_table(deck.model)) {
    if (p.part != Part::experts || p.shape.dims.size() != 2) continue;
    const bool down = p.name.ends_with("w_down");
    const std::size_t out = down ? C : 2 * F, in = down ? F : C, step = down ? 1 : 2, first = p.name.ends_with("w_up") ? 1 : 0;
    for (const std::int64_t at : {0, 17}) {
      std::vector<float> got(static_cast<std::size_t>(p.shape.elements() - at - 5));
      weights.read(p, whole_box(p.shape), at, got);
      for (std::size_t i = 0; i < got.size(); ++i) {
        const std::size_t ours = i + static_cast<std::size_t>(at), row = first + step * (ours / in);
        ASSERT_EQ(got[i], meant((static_cast<std::size_t>(p.expert) * out + row) * in + ours % in)) << p.name << " " << ours;
      }
    }
  }
}

TEST(Mxfp4, AnImportHasTheMatricesAndAnExportWritesThemWhole) {
  const Scratch scratch;
  write_model(scratch / "m", gpt_oss());
  import_model({.model = scratch / "m", .run = scratch / "run", .overrides = {}});
  consolidate({.checkpoint = scratch / "run/checkpoints/latest", .output = scratch / "out", .dtype = DType::bf16});
  const io::SafetensorsModel model(scratch / "out");
  const auto* in = model.find("model.layers.0.mlp.experts.gate_up_proj");
  ASSERT_TRUE(in && in->shape == (Shape{2, 32, 128}) && in->type == "BF16");
  std::vector<float> values(2 * 32 * 128);
  model.read_box(*in, whole_box(in->shape), values);
  for (std::size_t e = 0; e < 2; ++e)
    for (std::size_t c = 0; c < 32; ++c)
      for (std::size_t n = 0; n < 128; ++n)
        ASSERT_EQ(values[(e * 32 + c) * 128 + n], meant((e * 128 + n) * 32 + c)) << e << " " << c << " " << n;
  EXPECT_EQ(test::slurp(scratch / "out/config.json").find("quantization_config"), std::string::npos);
}

TEST(Mxfp4, WhatIsWrongIsNamed) {
  const auto refused = [](const std::function<void(std::vector<Raw>&)>& edit, ExitCode code = ExitCode::data,
                          const char* method = "mxfp4") {
    const Scratch scratch;
    write_model(scratch / "m", gpt_oss(), edit, method);
    return test::error_of(code, [&] { InitialWeights(gpt_oss({"run.init=" + scratch / "m"}), false); });
  };
  const auto find = [](std::vector<Raw>& all, const char* end) -> Raw& {
    return *std::ranges::find_if(all, [&](const Raw& raw) { return raw.name.ends_with(end); });
  };
  const std::string missing =
      refused([&](std::vector<Raw>& all) { std::erase_if(all, [](const Raw& raw) { return raw.name.ends_with("down_proj_scales"); }); });
  EXPECT_TRUE(test::has(missing, "1 tensor is missing: model.layers.0.mlp.experts.down_proj")) << missing;
  const std::string bias = refused([&](std::vector<Raw>& all) {  // whose shape blocks could have as well
    Raw& raw = find(all, "gate_up_proj_bias");
    raw.name += "_blocks", raw.type = "U8";
    raw.bytes.resize(static_cast<std::size_t>(raw.shape.elements()));
    Raw scales = raw;
    scales.name = scales.name.substr(0, scales.name.size() - 7) + "_scales";
    all.push_back(scales);
  });
  EXPECT_TRUE(test::has(bias, "1 tensor is missing: model.layers.0.mlp.experts.gate_up_proj_bias")) << bias;
  const std::string shape = refused([&](std::vector<Raw>& all) { find(all, "gate_up_proj_scales").shape = {2, 64, 2}; });
  EXPECT_TRUE(test::has(shape, "gate_up_proj_scales are 2 x 128 x 1 x 16 and 2 x 64 x 2, which cannot become 2 x 32 x 128")) << shape;
  const std::string type = refused([&](std::vector<Raw>& all) { find(all, "down_proj_blocks").type = "I8"; });
  EXPECT_TRUE(test::has(type, "down_proj_blocks is I8, but bytes (U8) are read")) << type;
  const std::string infinite = [&] {
    const Scratch scratch;
    write_model(scratch / "m", gpt_oss(), [&](std::vector<Raw>& all) {
      Raw& scales = find(all, "down_proj_scales");
      std::ranges::fill(scales.bytes, std::byte(255));  // no number, of whatever code
      std::ranges::fill(find(all, "down_proj_blocks").bytes, std::byte(0x10));
    });
    const Deck deck = gpt_oss({"run.init=" + scratch / "m"});
    const InitialWeights weights(deck, false);
    const auto table = parameter_table(deck.model);
    const Parameter& p = *std::ranges::find_if(table, [](const Parameter& q) { return q.name.ends_with("w_down"); });
    std::vector<float> got(static_cast<std::size_t>(p.shape.elements()));
    return test::error_of(ExitCode::data, [&] { weights.read(p, whole_box(p.shape), 0, got); });
  }();
  EXPECT_TRUE(test::has(infinite, "down_proj_blocks has a value that is")) << infinite;
  const std::string method = refused({}, ExitCode::usage, "fp8");
  EXPECT_TRUE(test::has(method, "quantization_config: quantized weights are not in this version")) << method;
}

}  // namespace
}  // namespace tessera::mxfp4_test
