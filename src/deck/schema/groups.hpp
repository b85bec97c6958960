// optimizer.groups: a list of tables, which are read and written here.
#pragma once
#include <toml++/toml.h>

#include <string>
#include <vector>

#include "deck/schema/value.hpp"

namespace tessera {

/// The tables of a list as groups; else what keeps them from being some, as `kind`.
Literal read_groups(const toml::array& tables);
/// [{ tensors = ["head.*"], learning_rate = 0.001 }]
std::string groups_text(const std::vector<OptimizerGroup>& groups);

}  // namespace tessera
