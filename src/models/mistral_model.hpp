// Models in Mistral's own layout: params.json, and consolidated.safetensors or the files of an index of that name.
#pragma once
#include <string>

namespace tessera {

/// Whether the folder has both, and no model.safetensors, whose config.json says more.
bool is_mistral_model(const std::string& folder);
/// "consolidated" of such a folder, "model" of all others: what files of tensors are called.
std::string stem_of_model(const std::string& folder);

}  // namespace tessera
