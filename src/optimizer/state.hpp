// What an optimizer keeps of each parameter between steps.
#pragma once
#include <span>
#include <string_view>

#include "deck/modes.hpp"

namespace tessera {

/// The first group of every optimizer: fp32 weights, which are the compute copy itself where that is fp32.
inline constexpr std::string_view master_group = "master";

/// Names of the groups of fp32 numbers, one a parameter, that `optimizer` keeps: "master", then its moments. Checkpoints
/// and buffers carry them; new runs begin with moments of zero.
std::span<const std::string_view> state_groups(OptimizerType optimizer);

}  // namespace tessera
