#include "families/activation.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace tessera {
namespace {

/// The first word of an activation is the one that exports have, and the first activation of a word the one that it is read as: the class
/// says that it is clamped.
constexpr auto rows = std::to_array<std::pair<std::string_view, Activation>>({{"silu", Activation::silu},
                                                                              {"swish", Activation::silu},
                                                                              {"gelu", Activation::gelu},
                                                                              {"gelu_pytorch_tanh", Activation::gelu_tanh},
                                                                              {"gelu_new", Activation::gelu_tanh},
                                                                              {"relu2", Activation::relu_squared},
                                                                              {"xielu", Activation::xielu},
                                                                              {"silu", Activation::clamped_silu}});

constexpr auto gates = std::to_array({Activation::silu, Activation::gelu, Activation::gelu_tanh});
constexpr auto plain = std::to_array({Activation::gelu, Activation::gelu_tanh, Activation::relu_squared, Activation::xielu});

}  // namespace

KnownActivations known_activations(const ModelKeys& standard) {
  if (standard.gated) return {gates, R"("silu", "gelu" and "gelu_pytorch_tanh")"};
  if (standard.activation == Activation::xielu) return {plain, R"("xielu", "gelu", "gelu_pytorch_tanh" and "relu2")"};
  return {std::span(plain).first(3), R"("gelu", "gelu_pytorch_tanh" and "relu2")"};
}

std::optional<Activation> activation_named(std::string_view theirs) {
  const auto found = std::ranges::find(rows, theirs, &std::pair<std::string_view, Activation>::first);
  return found == rows.end() ? std::nullopt : std::optional(found->second);
}

std::string_view word_of_theirs(Activation activation) {
  return std::ranges::find(rows, activation, &std::pair<std::string_view, Activation>::second)->first;
}

}  // namespace tessera
