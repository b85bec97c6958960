// Models of text and images, of whose config.json and files the text model is read.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tessera {

struct WholeModel {
  std::string_view type, architecture;       ///< model_type; the one of `architectures`
  std::string_view text_type;                ///< of its text_config
  std::span<const std::string_view> beside;  ///< keys of what is not text
};
/// nullptr: none of this model_type is known.
const WholeModel* whole_model(std::string_view type);

/// "model.layers.0.mlp.up_proj.weight" of "language_model.model.layers.0.mlp.up_proj.weight", or of "model.language_model.layers...", as
/// the text model's own files have it; nothing of a tensor that is no part of it.
std::optional<std::string> name_in_text_part(std::string_view theirs);

}  // namespace tessera
