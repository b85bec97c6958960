// Names and configuration of an export in Hugging Face's words.
#pragma once
#include <string>

#include "deck/deck.hpp"

namespace tessera {

/// config.json: LlamaForCausalLM, Qwen2 (QKV bias) or Qwen3 (QK-norm). Throws Error(usage) for a combination that no class of transformers
/// holds.
std::string huggingface_config(const Deck& deck, DType dtype);

}  // namespace tessera
