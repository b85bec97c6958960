// Tensors that training leaves as they are (model.freeze): which they are, and what of the backward pass goes with them.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "model/layout.hpp"
#include "model/segment.hpp"

namespace tessera {

/// Marks the tensors that the patterns describe. Throws Error(usage) that names a pattern of no tensor with the names nearest to it, one of
/// a tensor that no gradient reaches, two tensors of one product of which one is frozen, and patterns that leave nothing to train.
void freeze(std::vector<Parameter>& table, std::span<const std::string> patterns);

/// "12 of 30 tensors, 1.2 M of 3.0 M parameters"; empty where nothing is frozen.
std::string describe_frozen(const std::vector<Parameter>& table);

/// Takes out of the backward texts what makes gradients of frozen tensors alone. A gradient that a call makes beside another goes to memory
/// that nobody reads. Of the first `bottom` segments the backward pass ends at the first one that has something to train, if there is one:
/// what only the gradient of the stream below it needs goes too, and segments before it have no backward pass.
void leave_frozen(std::vector<Segment>& segments, const Layout& layout, std::size_t bottom);

}  // namespace tessera
