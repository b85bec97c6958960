// Models whose config.json says that the embedding is the head, and whose files hold a head of their own.
#pragma once
#include <string>

namespace tessera {

/// Whether the folder's weights have lm_head.weight with other values than the embedding: transformers 5 takes that head, whatever
/// tie_word_embeddings says. Reads both up to the first difference, with a fixed buffer. False where there are no weights; throws what
/// SafetensorsModel does.
bool has_own_head(const std::string& folder);

}  // namespace tessera
