// The model as transformers knows it: its class, its tensors, and the files beside them.
#pragma once
#include <optional>
#include <string>
#include <utility>
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

/// Which tokens begin, end and fill a text, as the config.json of a model says it: bos_token_id, eos_token_id and pad_token_id with their
/// values as JSON. What that file leaves out is left out.
using TokenIds = std::vector<std::pair<std::string, std::string>>;

/// The text of config.json. Without ids a text of the byte tokenizer begins and ends with its separator, and of another nobody knows.
std::string huggingface_config(const Deck& deck, DType dtype, const std::optional<TokenIds>& ids = {});

/// The text of generation_config.json: where a text begins and ends.
std::string huggingface_generation_config(const Deck& deck, const std::optional<TokenIds>& ids = {});

}  // namespace tessera
