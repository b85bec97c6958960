// Weights and tokenizers in the files of other programs: what they are, and the command that makes of them what is read here.
#pragma once
#include <string>

namespace tessera {

/// Of a folder without model.safetensors: sentences that say what it holds in its place, and the command or the download that is wanted;
/// "" where it holds nothing that is known. Each begins with a space.
std::string foreign_weights(const std::string& folder);

/// Of a folder without tokenizer.json the same.
std::string foreign_tokenizer(const std::string& folder);

}  // namespace tessera
