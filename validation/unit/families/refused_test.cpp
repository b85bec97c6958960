// Families that are known and not in this version: refused by name, with what is missing.
#include "families/refused.hpp"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "families/family.hpp"
#include "families/read_config.hpp"

namespace tessera::refused_test {
namespace {

std::string faults_of(const std::string& text) {
  std::vector<Fault> faults;
  read_huggingface_config(text, "config.json", faults);
  std::string all;
  for (const Fault& fault : faults) all += fault.str() + "\n";
  return all;
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

TEST(RefusedFamily, EachTypeSaysAllThatIsMissing) {
  std::set<std::string_view> seen;
  for (const RefusedFamily& row : refused_families())
    for (const std::string_view type : row.types) {
      EXPECT_TRUE(seen.insert(type).second) << type << " has two rows";
      EXPECT_EQ(family_named(type), nullptr) << type << " is supported: take its row away";
      const std::string text = faults_of(fmt::format("{{\"model_type\": \"{}\", \"hidden_size\": \"wide\"}}", type));
      EXPECT_TRUE(text.starts_with(fmt::format("config.json:1:16: model_type: \"{}\" is not in this version, which lacks ", type))) << text;
      EXPECT_FALSE(row.missing.empty()) << type;
      for (const std::string_view feature : row.missing) EXPECT_TRUE(says(text, std::string(feature))) << text;
      EXPECT_TRUE(says(text, ". In it apertus, ")) << text;
      EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << "the rest of the file is not looked at:\n" << text;
    }
}

TEST(RefusedFamily, WhatPeopleHaveIsRefusedWithItsReason) {
  const std::pair<const char*, const char*> cases[] = {{"deepseek_v3", "multi-head latent attention (q_lora_rank, kv_lora_rank"},
                                                       {"kimi_k2", "multi-head latent attention"},
                                                       {"mistral4", "multi-head latent attention"},
                                                       {"deepseek_v32", "attention to chosen tokens (index_topk)"},
                                                       {"qwen3_5", "gated DeltaNet"},
                                                       {"qwen3_5_moe", "gated DeltaNet"},
                                                       {"qwen3_next", "gated DeltaNet"},
                                                       {"gemma4", "embeddings for each layer (hidden_size_per_layer_input)"},
                                                       {"llama4", "attention within chunks"},
                                                       {"deepseek_v2", "groups of experts with softmax"},
                                                       {"ministral3", "llama_4_scaling_beta"}};
  for (const auto& [type, reason] : cases) {
    const std::string text = faults_of(fmt::format("{{\"model_type\": \"{}\"}}", type));
    EXPECT_TRUE(says(text, reason)) << text;
  }
  EXPECT_TRUE(says(faults_of(R"({"model_type": "qwen3_5", "text_config": {}})"), "models of more than text (text_config)"));
  EXPECT_TRUE(
      says(faults_of(R"({"model_type": "llava", "text_config": {}})"), "\"llava\" is not in this version, which lacks models of more"));
  EXPECT_TRUE(says(faults_of(R"({"model_type": "gpt_neo"})"), "\"gpt_neo\" is not a model that a deck can describe; apertus, "));
}

TEST(RefusedFamily, KeysOfWhatIsMissingAreRefusedInAnyFile) {
  const std::pair<const char*, const char*> cases[] = {{"\"q_lora_rank\": 1536", "q_lora_rank: multi-head latent attention"},
                                                       {"\"kv_lora_rank\": 512", "kv_lora_rank: multi-head latent attention"},
                                                       {"\"index_topk\": 2048", "index_topk: attention to chosen tokens"},
                                                       {"\"final_logit_softcapping\": 30.0", "final_logit_softcapping: is not a known key"},
                                                       {"\"linear_num_key_heads\": 16", "linear_num_key_heads: linear attention"},
                                                       {"\"num_nextn_predict_layers\": 1", "num_nextn_predict_layers: layers that predict"},
                                                       {"\"num_mtp_layers\": 1", "num_mtp_layers: layers that predict"},
                                                       {"\"text_config\": {}", "text_config: models of more than text"}};
  for (const auto& [key, reason] : cases) {
    const auto with = [](const std::string& more) {
      return faults_of(R"({"model_type": "mistral", "sliding_window": null, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 3, "num_attention_heads": 8, "vocab_size": 300)" +
                       more + "}");
    };
    EXPECT_EQ(with(""), "");
    const std::string text = with(std::string(", ") + key);
    EXPECT_TRUE(says(text, reason)) << text;
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  }
}

}  // namespace
}  // namespace tessera::refused_test
