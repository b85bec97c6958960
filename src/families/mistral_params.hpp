// The model that a params.json says: Mistral's own layout, of which mistral-inference is the definition (v1.6).
#pragma once
#include <string>
#include <vector>

#include "families/read_config.hpp"

namespace tessera {

/// The text of a params.json. What is wrong goes to `faults`. Dense models and Mixtral's; those of images, of four or eight bits, with a
/// latent attention or a stretched rotation are refused by their keys.
ModelSource read_mistral_params(const std::string& text, const std::string& file, std::vector<Fault>& faults);

}  // namespace tessera
