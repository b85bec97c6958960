// The [model] of a deck from a name, another deck, or the config.json of a model on Hugging Face.
#pragma once
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "families/read_config.hpp"

namespace tessera {

/// `name`: a preset, a path that ends in .toml or .json, or a folder with a config.json. What is wrong goes to `faults`.
ModelSource read_model(const std::string& name, std::vector<Fault>& faults);
/// "llama2-7b, llama3-8b, ..."
std::string known_models();

/// The config.json of a model's folder, or the params.json of one in Mistral's own layout.
ModelSource read_huggingface_folder(const std::string& folder, std::vector<Fault>& faults);

/// Where the weights have a head of their own, whatever config.json says of it: a note says so.
void take_own_head(ModelSource& source, const std::string& folder);

/// Keys of [model] that say another model than the source, one a line: "model.layers = 4, and num_hidden_layers is 2". Initial weights and
/// what trains routers are no part of it.
std::vector<std::string> model_differences(const ModelKeys& deck, const ModelSource& theirs);

}  // namespace tessera
