// model.kinds: a list of tables, which are read and written here, and what they make of each layer.
#pragma once
#include <toml++/toml.h>

#include <string>
#include <vector>

#include "deck/kinds_of_layers.hpp"
#include "deck/schema/value.hpp"

namespace tessera {

/// The tables of a list as kinds; else what keeps them from being some, as `kind`.
Literal read_kinds(const toml::array& tables);
/// [{ name = "L", window = 1024 }]
std::string kinds_text(const std::vector<KindKeys>& kinds);

}  // namespace tessera
