// TOML syntax with recovery: one bad line does not hide the faults of the others.
#pragma once
#include <toml++/toml.h>
#include <string>
#include <vector>

#include "deck/deck.hpp"

namespace tessera {

/// Parses as much of `text` as can be parsed and adds a fault for every line that cannot. Returns whether there was none.
bool read_toml(const std::string& text, const std::string& file, toml::table& out, std::vector<Fault>& faults);

}  // namespace tessera
