// TOML syntax with recovery: one bad line does not hide the faults of the others.
#pragma once
#include <toml++/toml.h>
#include <string>
#include <vector>

#include "deck/schema/value.hpp"

namespace tessera {

/// A line nests deeper than the TOML library can follow, which walks the parts of a key one inside the other.
bool too_deep(const std::string& line);

/// Parses as much of `text` as can be parsed and adds a fault for every line that cannot. Returns whether there was none.
bool read_toml(const std::string& text, const std::string& file, toml::table& out, std::vector<Fault>& faults);

/// An integer, a number, true or false, or a text; else what it is.
Literal scalar_literal(const toml::node& node);

}  // namespace tessera
