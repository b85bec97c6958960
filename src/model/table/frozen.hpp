// Tensors that training leaves as they are (model.freeze): which they are.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "model/table/layout.hpp"

namespace tessera {

/// Marks the tensors that the patterns describe. Throws Error(usage) that names a pattern of no tensor with the names nearest to it, one of
/// a tensor that no gradient reaches, two tensors of one product of which one is frozen, and patterns that leave nothing to train.
void freeze(std::vector<Parameter>& table, std::span<const std::string> patterns);
/// Throws Error(usage) that names `key` where one product reads a frozen tensor and one that is trained.
void require_joined_alike(const std::vector<Parameter>& table, std::string_view key);

/// The three tensors whose names differ least from a pattern.
std::vector<std::string> nearest_names(const std::vector<Parameter>& table, std::string_view pattern);

/// "12 of 30 tensors, 1.2 M of 3.0 M parameters"; empty where nothing is frozen.
std::string describe_frozen(const std::vector<Parameter>& table);

}  // namespace tessera
