// The part of a deck that somebody chose.
#pragma once
#include <string>
#include <vector>

#include "deck/deck.hpp"

namespace tessera {

/// The keys that were given with another value than their default, a line a section ("[zero] stage = 3, overlap_comm = false"). Lines of
/// more than `width` characters go on indented. Keys that `auto` resolved are left to ParsedDeck::resolved.
std::vector<std::string> given_keys(const ParsedDeck& parsed, std::size_t width);

}  // namespace tessera
