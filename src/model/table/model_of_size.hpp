// A shape for a number of parameters, for plans of models that nobody has drawn yet.
#pragma once
#include "deck/deck.hpp"

namespace tessera {

/// `like` with layers, width, heads, head_dim, kv_heads and ff_width of a dense model of about so many parameters, its embeddings among
/// them: a width of 128 features a layer (64 below 1e9 parameters) as in Llama and GPT, heads of 128 (64) features, a feed-forward block of
/// some 8/3 of the width, by which the count is met. Heads share keys and values as in `like`. Throws Error(usage) where no shape has so
/// few.
ModelKeys model_of_size(std::int64_t parameters, ModelKeys like);

}  // namespace tessera
