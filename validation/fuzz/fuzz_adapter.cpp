// adapter_config.json of PEFT, against the [lora] section that a first byte chooses. What is accepted is an object that says the rank.
#include "base/json.hpp"

#include "exchange/adapter_config.hpp"
#include "validation/fuzz/fuzz.hpp"

namespace tessera::fuzz {

const ExitCode refusal = ExitCode::data;

void read_input(std::string_view bytes) {
  if (bytes.empty()) return;
  const bool stabilized = bytes.front() == 'r';
  LoraKeys lora;
  lora.rank = 8, lora.alpha = stabilized ? 16.0 : 12.5, lora.targets = {"attention"},
  lora.scaling = stabilized ? LoraScaling::rslora : LoraScaling::standard;
  lora.init = folder_with("adapter_config.json", bytes.substr(1));
  try {
    require_same_adapter(lora);
  } catch (const Error& error) {
    if (error.code == ExitCode::usage) return;  // another adapter
    throw;
  }
  const auto config = Json::parse(bytes.substr(1));
  if (config.at("peft_type") != "LORA" || config.at("r") != lora.rank || config.at("lora_alpha") != lora.alpha)
    defect("an adapter that is accepted and is another");
  if (config.value("use_rslora", false) != stabilized) defect("an adapter of another scale is accepted");
}

}  // namespace tessera::fuzz
