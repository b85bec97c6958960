// batch.ramp: a list of tables, which are read and written here.
#pragma once
#include <toml++/toml.h>

#include <string>
#include <vector>

#include "deck/schema/value.hpp"

namespace tessera {

/// The tables of a list as phases; else what keeps them from being some, as `kind`.
Literal read_phases(const toml::array& tables);
/// [{ until_step = 100, global = 8 }]
std::string phases_text(const std::vector<RampPhase>& phases);

}  // namespace tessera
