// Which polynomials make a matrix orthogonal: a word of a deck, and what the kernel is asked for.
#pragma once
#include "base/words.hpp"

namespace tessera {

enum class OrthogonalSteps : std::uint8_t {
  quintic,       ///< five that follow each other: nearest to 1 of the published ones (Megatron-LM's default)
  simple,        ///< (3.4445, -4.7750, 2.0315) five times: singular values end between about 0.7 and 1.2 (Jordan; DeepSpeed)
  polar_express  ///< five that are the best for all values of a range (Amsel et al., arXiv:2505.16932; nanochat)
};
template <>
inline constexpr auto enum_words<OrthogonalSteps> = std::to_array<std::string_view>({"quintic", "simple", "polar_express"});

}  // namespace tessera
