// Of models of text and images the text model is read: its config.json, and the names of its tensors.
#include "families/text_part.hpp"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include "families/family.hpp"
#include "families/read_config.hpp"

namespace tessera::text_part_test {
namespace {

struct Read {
  ModelSource source;
  std::string faults;
};
Read read(const std::string& text) {
  std::vector<Fault> faults;
  Read out{.source = read_huggingface_config(text, "config.json", faults), .faults = ""};
  for (const Fault& fault : faults) out.faults += fault.str() + "\n";
  return out;
}

/// As the model of 4B has it on its page: most of its text model is what the class has by itself.
std::string gemma3(const std::string& in_text, const std::string& beside) {
  return fmt::format(R"({{"architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999, "eoi_token_index": 256000,
"eos_token_id": [1, 106], "image_token_index": 262144, "initializer_range": 0.02, "mm_tokens_per_image": 256, "model_type": "gemma3",
"text_config": {{"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024{}}},
"torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0", "vision_config": {{"hidden_size": 1152, "image_size": 896}}{}}})",
                     in_text, beside);
}

TEST(TextPart, IsReadWithWhatItsClassHasByItself) {
  const Read gemma = read(gemma3(R"(, "model_type": "gemma3_text", "rope_scaling": {"factor": 8.0, "rope_type": "linear"})", ""));
  EXPECT_EQ(gemma.faults, "");
  const ModelKeys& m = gemma.source.model;
  EXPECT_EQ(gemma.source.family, family_named("gemma3_text"));
  EXPECT_TRUE(gemma.source.text_part);
  EXPECT_EQ(m.layers, 34);
  EXPECT_EQ(m.width, 2560);
  EXPECT_EQ(m.heads, 8);
  EXPECT_EQ(m.kv_heads, 4);
  EXPECT_EQ(m.head_dim, 256);
  EXPECT_EQ(m.vocab, 262208);
  EXPECT_EQ(m.pattern, "LLLLLG");
  EXPECT_TRUE(m.tied);
  EXPECT_EQ(m.rope_scaling, RopeMode::linear);
  EXPECT_EQ(gemma.source.context, 131072);
  ASSERT_EQ(gemma.source.notes.size(), 1u);
  EXPECT_NE(gemma.source.notes[0].find(". The image part is left out"), std::string::npos);
  EXPECT_EQ(read(gemma3("", "")).source.model.layers, 34) << "without a model_type of its own";
  EXPECT_FALSE(read(gemma3("", R"(, "tie_word_embeddings": false)")).source.model.tied);
}

TEST(TextPart, WhatIsWrongIsNamed) {
  const std::pair<std::string, const char*> cases[] = {
      {R"({"model_type": "gemma3"})", "text_config: is missing; a gemma3 has its text model there"},
      {R"({"model_type": "gemma3", "text_config": [1]})", "text_config: expected an object"},
      {gemma3(R"(, "model_type": "llama")", ""), "model_type: \"llama\" is not a supported text model of a gemma3"},
      {gemma3(R"(, "num_attention_heads": "eight")", ""), "num_attention_heads: expected an integer"},
      {gemma3(R"(, "num_expert": 4)", ""), "num_expert: is not a known key"},
      {gemma3("", R"(, "quantization_config": {})"), "quantization_config: quantized weights"},
      {gemma3("", R"(, "audio_config": {})"), "audio_config: is not a known key of model_type \"gemma3\""},
      {R"({"model_type": "gemma3", "architectures": ["Gemma3ForCausalLM"], "text_config": {}})", "is not Gemma3ForConditionalGeneration"}};
  for (const auto& [text, says] : cases) {
    const std::string faults = read(text).faults;
    EXPECT_NE(faults.find(says), std::string::npos) << text << " says\n" << faults;
    EXPECT_EQ(std::count(faults.begin(), faults.end(), '\n'), 1) << faults;
  }
}

TEST(TextPart, HasTheNamesOfTheTextModel) {
  EXPECT_EQ(name_in_text_part("language_model.model.layers.1.mlp.up_proj.weight"), "model.layers.1.mlp.up_proj.weight");
  EXPECT_EQ(name_in_text_part("language_model.lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(name_in_text_part("model.language_model.norm.weight"), "model.norm.weight");
  EXPECT_EQ(name_in_text_part("lm_head.weight"), "lm_head.weight");
  for (const char* other : {"vision_tower.ln_pre.weight", "multi_modal_projector.linear_1.weight", "model.vision_tower.ln_pre.weight"})
    EXPECT_EQ(name_in_text_part(other), std::nullopt) << other;
}

}  // namespace
}  // namespace tessera::text_part_test
