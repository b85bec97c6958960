// Adapters that PEFT has no names for.
#pragma once
#include <string>
#include <vector>

#include "families/names.hpp"
#include "model/table/parameters.hpp"

namespace tessera {

/// Says which matrices that have an adapter are parts of tensors in files with such names: PEFT has one adapter beside all of such a
/// tensor. Empty where none is.
std::string adapted_parts(const std::vector<Parameter>& table, const TensorNames& names);

}  // namespace tessera
