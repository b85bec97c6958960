// Tensors with a learning rate or weight decay of their own (optimizer.groups).
#pragma once
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "model/table/parameters.hpp"

namespace tessera {

/// What the update of a tensor takes.
struct UpdateRates {
  float learning_rate_scale = 1;  ///< of the step's learning rate
  float weight_decay = 0;
};

/// A matrix of a layer: neither of the embedding nor of the head. The pattern "all-linear" of a group describes these.
bool is_hidden_matrix(const Parameter& parameter);

/// The first group whose patterns describe the tensor, or nullptr.
const OptimizerGroup* group_of(const OptimizerKeys& keys, const Parameter& tensor);

/// Of the first group that has the tensor. Without one, or where the group does not say it, the learning rate is the step's, and matrices
/// have optimizer.weight_decay.
UpdateRates rates_of(const OptimizerKeys& keys, const Parameter& parameter);

/// Throws Error(usage) that names a pattern of no tensor that is trained.
void require_groups(const OptimizerKeys& keys, const std::vector<Parameter>& table);

/// "head.*: learning rate 0.0001; 2 tensors, 1.2 M parameters", a line for each group.
std::vector<std::string> describe_groups(const OptimizerKeys& keys, const std::vector<Parameter>& table);

}  // namespace tessera
