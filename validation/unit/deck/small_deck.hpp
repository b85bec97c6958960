// The shortest valid deck, and helpers to change one thing in it.
#pragma once
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>

#include "deck/deck.hpp"

namespace tessera {

inline const std::string small_deck = R"([run]
steps = 100
[model]
layers = 2
width = 64
heads = 4
ff_width = 128
vocab = 257
[batch]
global = 16
micro = 4
sequence_length = 32
[data]
train = "data/train.h5"
[optimizer]
learning_rate = 1e-3
)";

inline ParsedDeck parse_small(const std::vector<std::string>& overrides = {}, int ranks = 0) {
  return parse_deck_text(small_deck, "decks/small.toml", overrides, ranks);
}

/// All faults, one a line.
inline std::string faults_of(const ParsedDeck& parsed) {
  std::string text;
  for (const Fault& f : parsed.faults) text += f.str() + "\n";
  return text;
}

}  // namespace tessera
