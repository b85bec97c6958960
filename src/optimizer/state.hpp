// What an optimizer keeps of each parameter between steps, and how it updates it: of a deck.
#pragma once
#include <string_view>
#include <vector>

#include "deck/deck.hpp"
#include "optimizer/texts/update_text.hpp"

namespace tessera {

/// The first group of every optimizer: fp32 weights, which are the compute copy itself where that is fp32.
inline constexpr std::string_view master_group = "master";

/// The text of optimizer.type, read.
UpdateRecord update_of(const OptimizerKeys& keys);

/// Names of the groups that the optimizer keeps: "master", then its state. Checkpoints and buffers carry them; new runs begin with state of
/// zero.
std::vector<std::string_view> state_groups(const OptimizerKeys& keys);

/// Of one parameter, master weights apart.
std::int64_t state_bytes(const OptimizerKeys& keys);

}  // namespace tessera
