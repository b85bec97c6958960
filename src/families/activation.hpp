// Activations by the words of transformers.
#pragma once
#include <optional>
#include <string_view>

#include "deck/modes.hpp"

namespace tessera {

/// Nothing where no deck has it.
std::optional<Activation> activation_named(std::string_view theirs);
std::string_view word_of_theirs(Activation activation);
/// "\"silu\", \"gelu\" ..."
inline constexpr std::string_view activation_words = R"("silu", "gelu" and "gelu_pytorch_tanh")";

}  // namespace tessera
