#include "families/text_part.hpp"

#include <algorithm>
#include <array>

namespace tessera {
namespace {

constexpr auto of_gemma3 = std::to_array<std::string_view>({"vision_config", "mm_tokens_per_image", "image_token_index", "image_token_id",
                                                            "boi_token_index", "boi_token_id", "eoi_token_index", "eoi_token_id"});
constexpr auto of_mistral3 =
    std::to_array<std::string_view>({"vision_config", "image_token_index", "image_token_id", "multimodal_projector_bias",
                                     "projector_hidden_act", "spatial_merge_size", "vision_feature_layer"});

constexpr auto whole_models = std::to_array<WholeModel>({{"gemma3", "Gemma3ForConditionalGeneration", "gemma3_text", of_gemma3},
                                                         {"mistral3", "Mistral3ForConditionalGeneration", "mistral", of_mistral3}});

}  // namespace

const WholeModel* whole_model(std::string_view type) {
  const auto found = std::ranges::find(whole_models, type, &WholeModel::type);
  return found == whole_models.end() ? nullptr : &*found;
}

std::optional<std::string> name_in_text_part(std::string_view theirs) {
  constexpr std::string_view whole = "language_model.", inner = "model.language_model.";
  if (theirs.starts_with(whole)) return std::string(theirs.substr(whole.size()));
  if (theirs.starts_with(inner)) return "model." + std::string(theirs.substr(inner.size()));
  if (theirs == "lm_head.weight") return std::string(theirs);
  return std::nullopt;
}

}  // namespace tessera
