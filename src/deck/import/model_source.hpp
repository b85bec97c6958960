// The [model] of a deck from a name, another deck, or the config.json of a model on Hugging Face.
#pragma once
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "deck/import/json_tree.hpp"

namespace tessera {

struct ModelSource {
  ModelKeys model;
  std::int64_t context = 0;  ///< tokens that the model was made for; 0: not known
  std::string from;          ///< for the deck's comment
};

/// `name`: a preset, or a path that ends in .toml or .json. What is wrong goes to `faults`.
ModelSource read_model(const std::string& name, std::vector<Fault>& faults);
/// "llama2-7b, llama3-8b, ..."
std::string known_models();

/// The text of a config.json.
ModelSource read_huggingface_config(const std::string& text, const std::string& file, std::vector<Fault>& faults);

}  // namespace tessera
