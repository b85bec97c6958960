// Activations by the words of transformers.
#pragma once
#include <optional>
#include <span>
#include <string_view>

#include "deck/deck.hpp"

namespace tessera {

/// Nothing where no deck has it.
std::optional<Activation> activation_named(std::string_view theirs);
std::string_view word_of_theirs(Activation activation);

/// That a class computes, and what a message calls them.
struct KnownActivations {
  std::span<const Activation> taken;
  std::string_view words;
};
/// Of a class whose files have by `standard` a gate or none, and xIELU's weights or none.
KnownActivations known_activations(const ModelKeys& standard);

}  // namespace tessera
