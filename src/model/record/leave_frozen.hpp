// What of the backward pass goes with the tensors that training leaves as they are.
#pragma once
#include <vector>

#include "model/record/segment.hpp"
#include "model/table/layout.hpp"

namespace tessera {

/// Takes out of the backward texts what makes gradients of frozen tensors alone. A gradient that a call makes beside another goes to memory
/// that nobody reads. Of the first `bottom` segments the backward pass ends at the first one that has something to train, if there is one:
/// what only the gradient of the stream below it needs goes too, and segments before it have no backward pass.
void leave_frozen(std::vector<Segment>& segments, const Layout& layout, std::size_t bottom);

}  // namespace tessera
