// The table of optimizers.
#pragma once
#include <string>

#include "optimizer/texts/update_text.hpp"

namespace tessera {

/// In the order in which messages name them.
const std::vector<Optimizer>& optimizers();
/// optimizer.type; throws Error(internal) where no row has it.
const Optimizer& optimizer_named(std::string_view name);
/// The row of a name of DeepSpeed's in lower case, or nullptr.
const Optimizer* optimizer_of_deepspeed(std::string_view name);

std::vector<std::string_view> optimizer_names();
/// Optimizers that others have: a name, and what to set in its place.
std::vector<std::pair<std::string_view, std::string_view>> refused_optimizers();

}  // namespace tessera
