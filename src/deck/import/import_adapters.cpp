// Adapters, as TRL's arguments say them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "deck/import/importer.hpp"
#include "deck/schema/value.hpp"

namespace tessera {
namespace {

/// A text, or a list of some.
std::string names_in(const JsonNode& node) {
  std::vector<std::string> names;
  if (node.kind == JsonNode::Kind::text) names.push_back(toml_string(node.written));
  for (const JsonNode& child : node.children) names.push_back(toml_string(child.written));
  return fmt::format("[{}]", fmt::join(names, ", "));
}

}  // namespace

void import_adapters(Importer& in) {
  constexpr std::string_view use = "use_peft", rank = "lora_r", alpha = "lora_alpha", dropout = "lora_dropout",
                             targets = "lora_target_modules", modules = "lora_modules_to_save", rslora = "use_rslora",
                             disable = "disable_dropout";
  // TRL's trainers of preferences take dropout out of adapters too, unless this key is false.
  const bool disables = has_preferences(in) && (!in.given(disable) || in.is_true(disable));
  if (in.given(disable) && (!in.is_true(use) || !disables))
    in.note(disable, in.is_true(use) ? "lora_dropout counts" : "only adapters have dropout here");
  if (!in.is_true(use)) {
    for (const std::string_view key : {rank, alpha, dropout, targets, modules, rslora})
      if (in.given(key)) in.note(key, "use_peft is not true, so that TRL trains the whole model");
    if (in.given(use)) in.note(use, "the whole model is trained");
    return;
  }
  const auto put = [&](std::string_view theirs, std::string_view ours, const char* otherwise, const char* why) {
    const JsonNode* node = in.given(theirs);
    if (!node) return in.put(ours, otherwise, use, why);
    in.put(ours, in.row(theirs).type == ForeignType::any ? names_in(*node) : node->written, theirs);
  };
  put(rank, "lora.rank", "16", "TRL's default");
  put(alpha, "lora.alpha", "32.0", "TRL's default");
  if (!disables) {
    put(dropout, "lora.dropout", "0.05", "TRL's default");
  } else {
    in.put("lora.dropout", "0.0", in.given(disable) ? disable : use, "TRL's disable_dropout, which is true if it is missing");
    if (in.given(dropout)) in.note(dropout, "disable_dropout replaces it, as in TRL");
  }
  put(targets, "lora.targets", "[\"q_proj\", \"v_proj\"]", "PEFT's default of most families");
  if (in.given(modules)) put(modules, "lora.modules_to_save", "", "");
  if (in.given(rslora)) in.put("lora.scaling", in.is_true(rslora) ? "\"rslora\"" : "\"standard\"", rslora);
}

}  // namespace tessera
