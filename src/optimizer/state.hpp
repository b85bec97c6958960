// The optimizers of a deck: which updates which tensors, and what it keeps of each parameter between steps.
#pragma once
#include <string_view>
#include <vector>

#include "deck/deck.hpp"
#include "model/table/parameters.hpp"
#include "optimizer/texts/update_text.hpp"

namespace tessera {

/// The first group of every optimizer: fp32 weights, which are the compute copy itself where that is fp32.
inline constexpr std::string_view master_group = "master";

/// Groups of what signs have taken from momenta of a rank, and from the means of its parts. A checkpoint has them after those of
/// state_groups, where momenta met as signs.
inline constexpr std::string_view sign_error_group = "sign_error", mean_sign_error_group = "mean_sign_error";

/// One of a deck's optimizers.
struct ChosenOptimizer {
  std::string name;  ///< Parameter::optimizer: "" for that of optimizer.type; "lion", and "lion-2" where groups have two with unlike keys
  UpdateKeys keys;   ///< those that it reads; others have their defaults
  UpdateRecord update;  ///< its text, read
};
/// That of optimizer.type, then those of its groups that name another, and those that update what one of these does not take, each once.
std::vector<ChosenOptimizer> chosen_optimizers(const OptimizerKeys& keys);

/// Whether ranks keep the gradients of their own micro-batches, and their momenta meet as signs: 1-bit Adam's after its warmup.
bool sends_signs(const OptimizerKeys& keys);

/// Says of each tensor that is trained which optimizer updates it, where `tensor_ranks` share those that mesh.tp cuts. Throws Error(usage)
/// that names two tensors of one product which groups give unlike ones, and more optimizers than a step has values for.
void assign_optimizers(const OptimizerKeys& keys, std::vector<Parameter>& table, int tensor_ranks = 1);

/// Names of the groups that the optimizers keep: "master", then their state. Checkpoints and buffers carry them; new runs begin with state
/// of zero.
std::vector<std::string_view> state_groups(const OptimizerKeys& keys);

/// Of one parameter that the optimizer of this name updates, master weights and what rows and columns have apart.
std::int64_t state_bytes(const OptimizerKeys& keys, std::string_view name = "");

}  // namespace tessera
