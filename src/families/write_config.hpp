// config.json and generation_config.json of an export.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.hpp"
#include "families/family.hpp"

namespace tessera {

/// Which tokens begin, end and fill a text, as the config.json of a model says it: bos_token_id, eos_token_id and pad_token_id with their
/// values as JSON. What that file leaves out is left out.
using TokenIds = std::vector<std::pair<std::string, std::string>>;

/// What config.json of the family's class says of a deck's model, which the family can say.
Json model_config(const Family& family, const Deck& deck);

/// The text of config.json. Without ids a text of the byte tokenizer begins and ends with its separator, and of another nobody knows.
/// Throws Error(usage) where no class of transformers has such a model.
std::string huggingface_config(const Deck& deck, DType dtype, const std::optional<TokenIds>& ids = {});

/// The text of generation_config.json: where a text begins and ends.
std::string huggingface_generation_config(const Deck& deck, const std::optional<TokenIds>& ids = {});

}  // namespace tessera
