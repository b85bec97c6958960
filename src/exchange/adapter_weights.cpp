#include "exchange/adapter_weights.hpp"

#include <map>
#include <vector>

#include "base/check.hpp"
#include "base/some_of.hpp"
#include "deck/schema/value.hpp"
#include "exchange/adapted_parts.hpp"
#include "exchange/adapter_config.hpp"
#include "model/table/lora.hpp"

namespace tessera {
namespace {

/// Every tensor of the deck's adapters, and no other.
void require_tensors(const io::SafetensorsModel& file, const Deck& deck) {
  std::map<std::string, Shape, std::less<>> wanted;
  for (const Parameter& p : parameter_table(deck.model))
    if (is_saved_with_adapter(p)) wanted.emplace(peft_name(p), p.shape);
  std::vector<std::string> missing, shapes, types, others;
  for (const auto& [name, shape] : wanted)
    if (!file.find(name)) missing.push_back(name);
  for (const io::SafetensorsModel::Tensor& t : file.tensors()) {
    const auto found = wanted.find(t.name);
    if (found == wanted.end())
      others.push_back(t.name);
    else if (!(found->second == t.shape))
      shapes.push_back(fmt::format("{} is {} and must be {}", t.name, t.shape.str(), found->second.str()));
    else if (t.type != "F32" && t.type != "BF16" && t.type != "F16")
      types.push_back(fmt::format("{} is {}", t.name, t.type));
  }
  std::string faults;
  const auto add = [&](const std::vector<std::string>& names, const char* what) {
    if (!names.empty()) faults += fmt::format("\n  {} {}: {}", names.size(), what, some_of(names));
  };
  add(missing, "missing, but lora.targets and lora.modules_to_save need them");
  add(shapes, "of another shape: the adapter was made for another model");
  add(types, "of a type other than F32, BF16 and F16");
  add(others, "that lora.targets and lora.modules_to_save do not name, or this model does not have");
  if (!faults.empty())
    fail(ExitCode::data, "lora.init = {}: its tensors do not match the deck's [lora] and [model]:{}", toml_string(deck.model.lora.init),
         faults);
}

}  // namespace

AdapterWeights::AdapterWeights(const Deck& deck, const TensorNames& names) : file_(deck.model.lora.init, "adapter_model") {
  if (const std::string parts = adapted_parts(parameter_table(deck.model), names); !parts.empty())
    fail(ExitCode::usage,
         "lora.init = {}: {}. Merge the adapter into its model with PEFT (merge_and_unload, then save_pretrained), and start from that "
         "model with run.init alone.",
         toml_string(deck.model.lora.init), parts);
  require_same_adapter(deck.model.lora, {.turned = names.name("layers.0.mlp.w_up").turned,
                                         .tied_whole = is_tied_whole(deck.model, parameter_table(deck.model))});
  require_tensors(file_, deck);
}

void AdapterWeights::read(const Parameter& parameter, const Box& box, std::int64_t at, std::span<float> out) const {
  file_.read_finite(*file_.find(peft_name(parameter)), box, out, at);
}

std::string AdapterWeights::describe() const {
  return fmt::format("{} ({} tensors, {})", file_.folder(), file_.tensors().size(), human_bytes(static_cast<double>(file_.bytes())));
}

}  // namespace tessera
