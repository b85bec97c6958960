// Weights of a run.init: read as they stand in the files, and refused with the names of what is wrong.
#include "exchange/initial_weights.hpp"

#include "base/json.hpp"

#include "../model/random_models.hpp"
#include "../scratch.hpp"
#include "../sharded_checkpoint.hpp"
#include "exchange/consolidate.hpp"
#include "exchange/import_model.hpp"
#include "families/write_config.hpp"
#include "io/files/posix_file.hpp"
#include "io/safetensors/safetensors.hpp"
#include "model/table/huggingface.hpp"

namespace tessera::initial_weights_test {
namespace {

using test::Scratch;

Deck deck_with(const std::string& folder, std::vector<std::string> overrides = {}) {
  overrides.push_back("run.init=" + folder);
  return test::tiny_deck(overrides);
}

/// A model of the deck in a folder, whose tensors the test may change before they are written, of zeros or ones.
void write_model(const std::string& folder, const Deck& deck, const std::function<void(std::vector<io::SafetensorsEntry>&)>& edit = {},
                 float value = 0) {
  test::fs::create_directories(folder);
  std::vector<io::SafetensorsEntry> entries;
  for (const ExportTensor& t : huggingface_tensors(deck, parameter_table(deck.model))) entries.push_back({t.name, DType::f32, t.shape});
  if (edit) edit(entries);
  io::SafetensorsWriter writer(folder + "/model.safetensors", entries);
  for (const io::SafetensorsEntry& e : entries)
    writer.append(std::as_bytes(std::span<const float>(std::vector<float>(static_cast<std::size_t>(e.shape.elements()), value))));
  writer.finish();
  test::spill(folder + "/config.json", huggingface_config(deck, DType::f32));
}

/// The deck of the checkpoint that an import makes.
std::string import_and_deck(const std::string& model, const std::string& run) {
  return io::CheckpointReader(import_model({.model = model, .run = run, .overrides = {}}).checkpoint).meta().deck;
}

const std::vector<std::string> of_glm45 = {"model.experts=4",         "model.expert_ff_width=20",    "model.shared_ff_width=40",
                                           "model.shared_gate=false", "model.router_scores=sigmoid", "model.router_balance=bias",
                                           "model.dense_layers=1"};

TEST(InitialWeights, EveryElementOfEveryTensor) {
  for (const std::vector<std::string>& keys :
       {std::vector<std::string>{},
        {"model.tied=true", "model.qk_norm=true", "model.qkv_bias=true", "model.attention_out_bias=true"},
        {"model.experts=4"},
        {"model.experts=4", "model.residual_scale=0.5", "model.embedding_scale=3", "model.tied=true"},
        of_glm45,
        {"model.experts=4", "model.shared_ff_width=8", "model.normalize_top_k=false", "model.qkv_bias=true"}})
    for (const DType type : {DType::f32, DType::bf16}) {
      const Scratch scratch;
      const std::string out = scratch / "out";
      const Deck deck = deck_with(out, keys);
      consolidate({.checkpoint = test::write_sharded(scratch.path(), deck, 2), .output = out, .dtype = type, .max_file_bytes = 40000});
      const InitialWeights weights(deck, false);
      for (const Parameter& p : parameter_table(deck.model)) {
        Box box = whole_box(p.shape);
        box.start[0] = box.count[0] / 2, box.count[0] -= box.start[0];
        std::vector<float> got(static_cast<std::size_t>(box.elements() - 1));
        weights.read(p, box, 1, got);
        const std::int64_t first = box.start[0] * (p.shape.elements() / p.shape.dims[0]) + 1;
        for (std::size_t i = 0; i < got.size(); ++i) {
          const float saved = test::value_at("master", p.name, first + static_cast<std::int64_t>(i));
          const bool whole = type == DType::f32 || !p.trained;  // a GLM-4.5's biases are fp32 in files of any type
          ASSERT_EQ(got[i], whole ? saved : static_cast<float>(bf16(saved))) << p.name << " " << i;
        }
      }
    }
}

TEST(InitialWeights, SaysWhatItIs) {
  const Scratch scratch;
  const Deck deck = deck_with(scratch / "m");
  write_model(scratch / "m", deck);
  const std::string text = InitialWeights(deck, false).describe();
  EXPECT_EQ(text, fmt::format("{} (LlamaForCausalLM, {} tensors, {})", scratch / "m", parameter_table(deck.model).size(),
                              human_bytes(4.0 * static_cast<double>(parameter_count(parameter_table(deck.model))))));
}

TEST(InitialWeights, AnotherModelIsNamedKeyByKey) {
  const Scratch scratch;
  const std::string folder = scratch / "m";
  write_model(folder, test::tiny_deck());
  const Deck deck = deck_with(folder, {"model.vocab=60", "model.rope_theta=5e5", "model.tied=true"});
  const std::string text = test::error_of(ExitCode::usage, [&] { InitialWeights(deck, false); });
  const Deck tiny = test::tiny_deck();
  EXPECT_TRUE(test::has(text, fmt::format("model.vocab = 60, but vocab_size is {}", tiny.model.vocab))) << text;
  EXPECT_TRUE(test::has(text, "model.rope_theta = 5e+05, but rope_theta is 10000.0")) << text;
  EXPECT_TRUE(test::has(text, "model.tied = true, but tie_word_embeddings is false")) << text;
  EXPECT_TRUE(test::has(text, "tessera deck from-hf " + folder)) << text;
  test::spill(folder + "/config.json", "{\"model_type\": \"gpt_neo\"}");
  EXPECT_TRUE(test::has(test::error_of(ExitCode::usage, [&] { InitialWeights(deck, false); }), "model_type: \"gpt_neo\""));
  test::fs::remove(folder + "/config.json");
  EXPECT_TRUE(test::has(test::error_of(ExitCode::usage, [&] { InitialWeights(deck, false); }), "config.json"));
}

TEST(InitialWeights, OtherTensorsAreNamedAtOnce) {
  const Scratch scratch;
  const std::string folder = scratch / "m";
  const Deck deck = deck_with(folder);
  const auto refused = [&](const std::function<void(std::vector<io::SafetensorsEntry>&)>& edit) {
    write_model(folder, deck, edit);
    return test::error_of(ExitCode::data, [&] { InitialWeights(deck, false); });
  };
  const std::string text = refused([](std::vector<io::SafetensorsEntry>& entries) {
    std::erase_if(entries, [](const auto& e) { return e.name.ends_with("up_proj.weight"); });
    for (auto& e : entries)
      if (e.name == "model.norm.weight") e.shape = {3};
    entries.push_back({"model.layers.0.extra", DType::f32, {2}});
  });
  EXPECT_TRUE(test::has(text, "2 tensors are missing: model.layers.0.mlp.up_proj.weight, model.layers.1.mlp.up_proj.weight")) << text;
  EXPECT_TRUE(test::has(text, fmt::format("1 of another shape: model.norm.weight is 3 and must be {}", deck.model.width))) << text;
  EXPECT_TRUE(test::has(text, "1 that this class of model does not have: model.layers.0.extra")) << text;
  const std::string many = refused([](std::vector<io::SafetensorsEntry>& entries) { entries.resize(3); });
  EXPECT_TRUE(test::has(many, " more\n")) << "the first few stand for all: " << many;
}

TEST(InitialWeights, WhatSaysNothingMayStandThere) {
  const Scratch scratch;
  const std::string folder = scratch / "m";
  const auto with_more = [](std::vector<io::SafetensorsEntry>& entries) {
    entries.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", DType::f32, {4}});
    entries.push_back({"lm_head.weight", DType::f32, entries.front().shape});  // the embedding once more
  };
  const Deck tied = deck_with(folder, {"model.tied=true"});
  write_model(folder, tied, with_more);
  EXPECT_NO_THROW(InitialWeights(tied, false));
}

// Their class does not read them either; of a file that says it has none they are not passed over.
TEST(InitialWeights, LayersThatPredictFurtherTokensAreLeftOut) {
  const Scratch scratch;
  const std::string folder = scratch / "m";
  const Deck deck = deck_with(folder, of_glm45);
  const auto write = [&](std::int64_t further) {
    write_model(folder, deck, [](std::vector<io::SafetensorsEntry>& entries) {
      entries.push_back({"model.layers.2.eh_proj.weight", DType::f32, {2, 4}});
    });
    Json config = Json::parse(huggingface_config(deck, DType::f32));
    EXPECT_EQ(config.at("num_nextn_predict_layers"), 0);
    config["num_nextn_predict_layers"] = further;
    test::spill(folder + "/config.json", config.dump());
  };
  write(1);
  EXPECT_NO_THROW(InitialWeights(deck, false));
  write(0);
  const std::string text = test::error_of(ExitCode::data, [&] { InitialWeights(deck, false); });
  EXPECT_TRUE(test::has(text, "1 that this class of model does not have: model.layers.2.eh_proj.weight")) << text;
}

// As transformers saves models of text and images, and as versions in between had them.
TEST(InitialWeights, OfATextModelAmongOthersTheRestIsLeftOut) {
  for (const auto& [prefix, whole] :
       {std::pair(std::string("language_model."), std::string("vision_tower.")), {"model.language_model.", "model.vision_tower."}})
    for (const bool complete : {true, false}) {
      const Scratch scratch;
      const std::string folder = scratch / "m";
      const Deck deck = deck_with(folder);
      write_model(
          folder, deck,
          [&](std::vector<io::SafetensorsEntry>& entries) {
            if (!complete) std::erase_if(entries, [](const auto& e) { return e.name == "model.norm.weight"; });
            for (auto& e : entries)
              if (prefix.starts_with("language"))
                e.name = prefix + e.name;
              else if (e.name != "lm_head.weight")
                e.name = prefix + e.name.substr(6);
            entries.push_back({whole + "layers.0.mlp.fc1.weight", DType::f32, {3, 5}});
          },
          0.5f);
      Json text = Json::parse(test::slurp(folder + "/config.json"));
      text.erase("architectures"), text.erase("mlp_bias"), text["model_type"] = "mistral", text["sliding_window"] = Json();
      const Json all{{"model_type", "mistral3"}, {"tie_word_embeddings", false}, {"vision_config", Json::object()}, {"text_config", text}};
      test::spill(folder + "/config.json", all.dump(2));
      if (!complete) {
        const std::string missing = test::error_of(ExitCode::data, [&] { InitialWeights(deck, false); });
        EXPECT_TRUE(test::has(missing, "1 tensor is missing: model.norm.weight")) << missing;
        continue;
      }
      const InitialWeights weights(deck, false);
      const Parameter p = parameter_table(deck.model).back();
      std::vector<float> values(static_cast<std::size_t>(p.shape.elements()));
      weights.read(p, whole_box(p.shape), 0, values);
      EXPECT_EQ(std::ranges::count(values, 0.5f), std::ssize(values));
    }
}

TEST(InitialWeights, ABiasOfTheOutputIsTheModels) {
  const Scratch scratch;
  const std::string folder = scratch / "m";
  const Deck plain = deck_with(folder, {"model.qk_norm=true", "model.qkv_bias=true"}),
             biased = deck_with(folder, {"model.qk_norm=true", "model.qkv_bias=true", "model.attention_out_bias=true"});
  write_model(folder, plain);  // with zeros, which are trained as any bias
  EXPECT_NO_THROW(InitialWeights(biased, false));
  const std::string text = test::error_of(ExitCode::usage, [&] { InitialWeights(plain, false); });
  EXPECT_TRUE(test::has(text, "model.attention_out_bias = false, but")) << text;
}

TEST(InitialWeights, AHeadOfItsOwnIsTheModelsHead) {
  const Scratch scratch;
  const std::string folder = scratch / "m";
  const Deck tied = deck_with(folder, {"model.tied=true"}), untied = deck_with(folder);
  struct Head {
    const char* what;
    DType type;
    float value;  ///< of its last element
    bool own;
  };
  for (const Head& head : {Head{"one element is another", DType::f32, 1, true},
                           {"the embedding once more", DType::f32, 0, false},
                           {"the same in another type", DType::bf16, 0, false}}) {
    test::fs::create_directories(folder);
    std::vector<io::SafetensorsEntry> entries;
    for (const ExportTensor& t : huggingface_tensors(tied, parameter_table(tied.model))) entries.push_back({t.name, DType::f32, t.shape});
    entries.push_back({"lm_head.weight", head.type, entries.front().shape});
    ASSERT_EQ(entries.front().name, "model.embed_tokens.weight");
    io::SafetensorsWriter writer(folder + "/model.safetensors", entries);
    for (const io::SafetensorsEntry& e : entries) {
      std::vector<float> values(static_cast<std::size_t>(e.shape.elements() * static_cast<std::int64_t>(size_of(e.dtype)) / 4));
      if (e.name == "lm_head.weight") values.back() = head.value;
      writer.append(std::as_bytes(std::span<const float>(values)));
    }
    writer.finish();
    test::spill(folder + "/config.json", huggingface_config(tied, DType::f32));
    EXPECT_NO_THROW(InitialWeights(head.own ? untied : tied, false)) << head.what;
    const std::string refused = test::error_of(ExitCode::usage, [&] { InitialWeights(head.own ? tied : untied, false); });
    EXPECT_TRUE(test::has(refused, head.own ? "model.tied = true, but lm_head.weight of its files differs from the embedding"
                                            : "model.tied = false, but tie_word_embeddings is true"))
        << head.what << "\n"
        << refused;
    const Deck imported = require_deck(parse_stored_deck(import_and_deck(folder, scratch / head.what), "the checkpoint"));
    EXPECT_EQ(imported.model.tied, !head.own) << head.what;
    consolidate({.checkpoint = scratch / head.what + "/checkpoints/latest", .output = scratch / head.what + "/out"});
    const auto config = Json::parse(test::slurp(scratch / head.what + "/out/config.json"));
    EXPECT_EQ(config.at("tie_word_embeddings"), !head.own);
    const io::SafetensorsModel out(scratch / head.what + "/out");
    ASSERT_EQ(out.find("lm_head.weight") != nullptr, head.own);
    if (!head.own) continue;
    const auto& t = *out.find("lm_head.weight");
    std::vector<float> values(static_cast<std::size_t>(t.shape.elements()));
    out.read_box(t, whole_box(t.shape), values);
    EXPECT_EQ(values.back(), head.value);
  }
}

TEST(InitialWeights, NewTokensBeginAsTheMean) {
  const Scratch scratch;
  const Deck small = test::tiny_deck();
  consolidate({.checkpoint = test::write_sharded(scratch.path(), small, 2), .output = scratch / "m"});
  const std::int64_t rows = small.model.vocab;
  const Deck deck = deck_with(scratch / "m", {fmt::format("model.vocab={}", rows + 3)});
  const InitialWeights weights(deck, false);
  for (const Parameter& p : parameter_table(deck.model)) {
    if (p.shape.dims[0] != rows + 3) continue;
    const std::int64_t width = p.shape.dims[1];
    const auto mean_at = [&](std::int64_t column) {
      double sum = 0;
      for (std::int64_t r = 0; r < rows; ++r) sum += static_cast<double>(test::value_at("master", p.name, r * width + column));
      return static_cast<float>(sum / static_cast<double>(rows));
    };
    // Whole; a part of columns around the last row of the file; new rows alone; each from its second element on.
    for (const Box& box : {whole_box(p.shape), Box{{rows - 1, 3}, {3, width - 5}}, Box{{rows + 1, 0}, {2, width}}}) {
      std::vector<float> got(static_cast<std::size_t>(box.elements() - 1));
      weights.read(p, box, 1, got);
      for (std::size_t i = 0; i < got.size(); ++i) {
        const auto at = static_cast<std::int64_t>(i + 1), row = box.start[0] + at / box.count[1], column = box.start[1] + at % box.count[1];
        ASSERT_EQ(got[i], row < rows ? test::value_at("master", p.name, row * width + column) : mean_at(column))
            << p.name << box.str() << i;
      }
    }
  }
  import_model({.model = scratch / "m", .run = scratch / "run", .overrides = {fmt::format("model.vocab={}", rows + 3)}});
  consolidate({.checkpoint = scratch / "run/checkpoints/latest", .output = scratch / "out"});
  const io::SafetensorsModel out(scratch / "out");
  EXPECT_EQ(out.find("model.embed_tokens.weight")->shape.dims[0], rows + 3);
  EXPECT_EQ(out.find("lm_head.weight")->shape.dims[0], rows + 3);
}

/// A tensor's element in the file, in place.
void alter_model(const std::string& path, const std::string& tensor, std::int64_t element, std::span<const std::byte> value) {
  const std::vector<io::SafetensorsTensor> tensors = io::read_safetensors_header(path);
  const auto found = std::ranges::find(tensors, tensor, &io::SafetensorsTensor::name);
  ASSERT_NE(found, tensors.end());
  io::PosixFile::update(path).write(found->begin + element * std::ssize(value), value.data(), value.size());
}

TEST(InitialWeights, WhatIsNoNumberIsNamed) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (const DType type : {DType::f32, DType::bf16})
    for (const auto& [value, says] : {std::pair(nan, "nan"), std::pair(infinity, "inf"), std::pair(-infinity, "-inf")})
      for (const auto& [name, element] : {std::pair("model.layers.1.mlp.up_proj.weight", 37), std::pair("model.norm.weight", 0)}) {
        const Scratch scratch;
        const Deck deck = deck_with(scratch / "m");
        consolidate({.checkpoint = test::write_sharded(scratch.path(), test::tiny_deck(), 1), .output = scratch / "m", .dtype = type});
        const std::string file = scratch / "m/model.safetensors";
        const bf16 narrow(value);
        alter_model(file, name, element, type == DType::f32 ? std::as_bytes(std::span(&value, 1)) : std::as_bytes(std::span(&narrow, 1)));
        const std::string expected = fmt::format("{}: tensor {}, element {} of ", file, name, element);
        // A part of the tensor, as a rank may keep it.
        const InitialWeights weights(deck, false);
        for (const Parameter& p : parameter_table(deck.model)) {
          if (p.export_name != name) continue;
          Box box = whole_box(p.shape);
          if (box.count.size() == 2) box.start[1] = 3, box.count[1] -= 3;
          std::vector<float> part(static_cast<std::size_t>(box.elements()));
          const std::string why = test::error_of(ExitCode::data, [&] { weights.read(p, box, 0, part); });
          EXPECT_TRUE(test::has(why, expected) && test::has(why, fmt::format(", is {}, so ", says))) << why;
        }
        const std::string why =
            test::error_of(ExitCode::data, [&] { import_model({.model = scratch / "m", .run = scratch / "run", .overrides = {}}); });
        EXPECT_TRUE(test::has(why, expected)) << why;
        EXPECT_FALSE(test::fs::exists(scratch / "run/checkpoints/step-00000000"));
      }
}

TEST(InitialWeights, BiasesOfRoutersAreNotOfTheFile) {
  const Scratch scratch;
  write_model(scratch / "m", test::tiny_deck({"model.experts=4"}));
  EXPECT_NO_THROW(InitialWeights(deck_with(scratch / "m", {"model.experts=4", "model.router_balance=bias"}), false));
}

}  // namespace
}  // namespace tessera::initial_weights_test
