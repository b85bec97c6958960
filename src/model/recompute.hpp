// What a training step keeps of its forward passes for the backward passes, and what it makes again (Chen et al., arXiv:1604.06174;
// Korthikanti et al., arXiv:2205.05198). Pure functions of the record.
#pragma once
#include <vector>

#include "deck/deck.hpp"
#include "model/passes.hpp"

namespace tessera {

struct ActivationPlan {
  std::vector<Kept> kept;            ///< by segment
  std::vector<bool> stream_dropped;  ///< by segment: the stream that leaves it is not kept; the passes that need it make it again
  /// Segments whose backward passes follow each other without a kept stream between them: [first, last], in forward order.
  struct Span {
    int first = 0, last = 0;
  };
  std::vector<Span> spans;
};

/// activation.recompute: none keeps all; selective drops, in every segment alike, the values that cost the fewest FLOPs a byte to make
/// again, until half of the bytes are gone; full keeps the stream that enters every `activation.every`-th layer.
ActivationPlan plan_activations(const std::vector<Segment>& segments, const ActivationKeys& keys);

}  // namespace tessera
