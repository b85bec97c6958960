// The model as transformers knows it: its class, its tensors, and the files beside them.
#pragma once
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "model/parameters.hpp"

namespace tessera {

/// A tensor of an export.
struct ExportTensor {
  std::string name;
  Shape shape;
  std::string source;  ///< our tensor with these values; none: zeros
};

/// All tensors of the class that the deck's model belongs to, in the order of `table`. Throws Error(usage) where no class has such a
/// model.
std::vector<ExportTensor> huggingface_tensors(const Deck& deck, const std::vector<Parameter>& table);

/// The text of config.json.
std::string huggingface_config(const Deck& deck, DType dtype);

/// The text of generation_config.json: where a text begins and ends.
std::string huggingface_generation_config(const Deck& deck);

}  // namespace tessera
