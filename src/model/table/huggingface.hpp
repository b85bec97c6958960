// The tensors of a model as transformers knows it.
#pragma once
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "model/table/parameters.hpp"

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

}  // namespace tessera
