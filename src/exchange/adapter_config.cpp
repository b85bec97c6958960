#include "exchange/adapter_config.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "base/check.hpp"
#include "base/json.hpp"
#include "base/log.hpp"
#include "base/printable.hpp"
#include "deck/schema/value.hpp"
#include "io/files/posix_file.hpp"

namespace tessera {
namespace {

constexpr std::int64_t most_config_bytes = 16 << 20;

Json read_config(const std::string& folder) {
  const std::string path = folder + "/adapter_config.json";
  const std::string text = io::read_small_file(path, ExitCode::data, most_config_bytes);
  try {
    Json config = Json::parse_strict(text);
    if (!config.is_object()) throw std::runtime_error("it is not an object");
    return config;
  } catch (const std::exception& e) {
    fail(ExitCode::data, "{}: it cannot be parsed ({}). Get the file again.", path, e.what());
  }
}

/// Keys that say nothing of what an adapter computes, or what its tensors say too.
constexpr std::array without_meaning = std::to_array<std::string_view>(
    {"auto_mapping", "base_model_name_or_path", "corda_config", "eva_config", "exclude_modules", "inference_mode", "layers_pattern",
     "layers_to_transform", "loftq_config", "megatron_config", "megatron_core", "modules_to_save", "peft_version", "qalora_group_size",
     "revision", "runtime_config", "target_modules", "task_type"});

/// PEFT's features that are not in this version; where they are off, nothing is missing.
constexpr std::array features = std::to_array<std::string_view>(
    {"alora_invocation_tokens", "alpha_pattern", "arrow_config", "ensure_weight_tying", "fan_in_fan_out", "kasa_config",
     "layer_replication", "lora_bias", "lora_ga_config", "monteclora_config", "rank_pattern", "target_parameters",
     "trainable_token_indices", "use_bdlora", "use_dora", "use_qalora", "velora_config"});

bool holds(std::span<const std::string_view> keys, std::string_view key) { return std::ranges::find(keys, key) != keys.end(); }

/// What a key has where a feature is not used.
bool says_no(const Json& value) { return value.is_null() || value == false || ((value.is_object() || value.is_array()) && value.empty()); }

/// Compares a key with the deck's; every difference joins `faults`.
class Comparison {
 public:
  Comparison(const LoraKeys& lora, const Json& config, const AdaptedModel& model) : lora_(lora), config_(config), model_(model) {
    if (model.turned) asked_.insert("fan_in_fan_out");  // PEFT goes by the module itself, whatever it says
  }

  std::vector<std::string> faults() {
    expect("peft_type", "LORA", "only LoRA is in this version");
    expect("r", lora_.rank, fmt::format("and lora.rank = {}", lora_.rank));
    expect("lora_alpha", lora_.alpha, fmt::format("and lora.alpha = {}", shortest(lora_.alpha)));
    expect_or_absent("use_rslora", lora_.scaling == LoraScaling::rslora,
                     fmt::format("and lora.scaling = {}", toml_string(word_of(lora_.scaling))));
    expect_or_absent("bias", "none", "biases are not trained with adapters in this version");
    check_init();
    if (model_.tied_whole) expect("ensure_weight_tying", true, "and this model's head is its embedding, which lora.modules_to_save trains");
    for (const auto& [key, value] : config_.items()) {
      if (value.is_null() || asked_.contains(key) || holds(without_meaning, key)) continue;
      if (key == "lora_dropout" && value.is_number())
        value == Json(lora_.dropout)
            ? void()
            : unused_.push_back(fmt::format("lora_dropout {} (lora.dropout is {})", value.dump(), shortest(lora_.dropout)));
      else if (!says_no(value))
        faults_.push_back(fmt::format("{} is {}, which is not in this version", key, value.dump()));
      else if (!holds(features, key))
        unused_.push_back(printable_name(key));
    }
    return faults_;
  }
  /// What is left out without a fault.
  const std::vector<std::string>& unused() const { return unused_; }

 private:
  template <class T>
  void expect(const char* key, const T& wanted, const std::string& reason) {
    asked_.insert(key);
    const Json* found = config_.find(key);
    if (!found || found->is_null())
      faults_.push_back(fmt::format("{} is missing", key));
    else if (*found != Json(wanted))
      faults_.push_back(fmt::format("{} is {}, {}", key, found->dump(), reason));
  }
  template <class T>
  void expect_or_absent(const char* key, const T& wanted, const std::string& reason) {
    asked_.insert(key);
    if ((config_.contains(key) && !config_[key].is_null()) || Json(wanted) == true) expect(key, wanted, reason);
  }
  /// Some ways to begin an adapter change the matrices that it stands beside.
  void check_init() {
    const char* key = "init_lora_weights";
    asked_.insert(key);
    if (!config_.contains(key) || config_[key].is_boolean() || config_[key].is_null() || config_[key] == "gaussian" ||
        config_[key] == "orthogonal")
      return;
    faults_.push_back(fmt::format(
        "{} is {}, which changes the model's own matrices; convert the adapter with PEFT first (path_initial_model_for_weight_conversion)",
        key, config_[key].dump()));
  }

  const LoraKeys& lora_;
  const Json& config_;
  const AdaptedModel& model_;
  std::set<std::string, std::less<>> asked_;
  std::vector<std::string> faults_, unused_;
};

}  // namespace

void require_same_adapter(const LoraKeys& lora, const AdaptedModel& model) {
  const Json config = read_config(lora.init);
  Comparison comparison(lora, config, model);
  const std::vector<std::string> faults = comparison.faults();
  if (!faults.empty())
    fail(ExitCode::usage, "lora.init = {} names another adapter than this deck's [lora], or an unsupported one:\n  {}",
         toml_string(lora.init), fmt::join(faults, "\n  "));
  if (!comparison.unused().empty()) info("{}/adapter_config.json: not used: {}", lora.init, fmt::join(comparison.unused(), ", "));
}

}  // namespace tessera
