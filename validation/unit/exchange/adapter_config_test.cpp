// adapter_config.json of PEFT: each key is compared, harmless, refused or named.
#include "exchange/adapter_config.hpp"

#include <gtest/gtest.h>

#include "base/json.hpp"

#include "../scratch.hpp"

namespace tessera::adapter_config_test {
namespace {

using namespace tessera::test;
/// What PEFT 0.21 writes of a plain adapter.
const Json plain = Json::parse(R"({"alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null, "auto_mapping": null,
"base_model_name_or_path": "m", "bias": "none", "corda_config": null, "ensure_weight_tying": false, "eva_config": null, "exclude_modules": null,
"fan_in_fan_out": false, "inference_mode": true, "init_lora_weights": true, "kasa_config": null, "layer_replication": null,
"layers_pattern": null, "layers_to_transform": null, "loftq_config": {}, "lora_alpha": 32, "lora_bias": false, "lora_dropout": 0.0,
"lora_ga_config": null, "megatron_config": null, "megatron_core": "megatron.core", "modules_to_save": null, "monteclora_config": null,
"peft_type": "LORA", "peft_version": "0.21.2", "qalora_group_size": 16, "r": 16, "rank_pattern": {}, "revision": null, "target_modules": ["q_proj"],
"target_parameters": null, "task_type": "CAUSAL_LM", "trainable_token_indices": null, "use_bdlora": null, "use_dora": false,
"use_qalora": false, "use_rslora": false, "velora_config": null})");

struct Said {
  std::string faults, log;
};

Said read(const Json& config) {
  const Scratch dir;
  spill(dir / "adapter_config.json", config.dump());
  LoraKeys lora;
  lora.rank = 16, lora.alpha = 32, lora.init = dir.path();
  Said said;
  testing::internal::CaptureStderr();
  try {
    require_same_adapter(lora);
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ExitCode::usage);
    said.faults = error.what();
  }
  said.log = testing::internal::GetCapturedStderr();
  return said;
}

TEST(AdapterConfig, ANullKeyIsAnAbsentOne) {
  const Said whole = read(plain);
  EXPECT_EQ(whole.faults + whole.log, "");
  for (const auto& [key, value] : plain.items()) {
    Json null = plain, absent = plain;
    null[key] = nullptr, absent.erase(key);
    const Said of_null = read(null), of_absent = read(absent);
    const bool needed = key == "r" || key == "lora_alpha" || key == "peft_type";
    EXPECT_EQ(of_null.faults.empty(), !needed) << key << ": " << of_null.faults;
    EXPECT_EQ(of_absent.faults.empty(), !needed) << key << ": " << of_absent.faults;
    if (needed) {
      EXPECT_HAS(of_null.faults, key + " is missing");
      EXPECT_HAS(of_absent.faults, key + " is missing");
    }
    EXPECT_EQ(of_null.log + of_absent.log, "") << key;
  }
}

TEST(AdapterConfig, NothingThatStandsThereIsSilent) {
  for (const auto& [key, value] :
       {std::pair("use_dora", Json(true)), std::pair("fan_in_fan_out", Json(true)), std::pair("rank_pattern", Json{{"q_proj", 4}}),
        std::pair("bias", Json("all")), std::pair("use_rslora", Json(true)), std::pair("init_lora_weights", Json("pissa")),
        std::pair("lora_dropout", Json("a text")), std::pair("r", Json(8)), std::pair("nobody_knows", Json(1)),
        std::pair("use_bdlora", Json{{"a", 1}})}) {
    Json config = plain;
    config[key] = value;
    EXPECT_HAS(read(config).faults, std::string(key) + " is ") << value.dump();
  }
  for (const auto& [key, value] :
       {std::pair("lora_dropout", Json(0.05)), std::pair("nobody_knows", Json(false)), std::pair("nobody_knows", Json::object())}) {
    Json config = plain;
    config[key] = value;
    const Said said = read(config);
    EXPECT_EQ(said.faults, "");
    EXPECT_HAS(said.log, std::string("adapter_config.json: not used: ") + key) << value.dump();
  }
}

}  // namespace
}  // namespace tessera::adapter_config_test
