// The arithmetic of a training step, by which rates are judged: what MFU counts.
#pragma once
#include <string>

#include "deck/deck.hpp"

namespace tessera {

/// FLOPs of a token in a training step, forward and backward: those of the calls that its texts are left with once what is frozen has no
/// gradients (leave_frozen). Of a model that is trained whole, 6 a matrix weight that a token meets, and of attention 12 L H D for each
/// token of its document. What recompute makes again does not count, nor do the scores that attention's backward pass makes again.
struct FlopsPerToken {
  double products = 0;
  double attention = 0;  ///< for each token of its document, also for those that come later

  /// Of tokens whose documents have `length` tokens, in the mean over tokens; with attention as a whole, or as the half that causal
  /// attention needs. Without data.document_mask a document is a sequence.
  double full(double length) const { return products + attention * length; }
  double causal(double length) const { return products + attention * length / 2; }
};
FlopsPerToken flops_per_token(const Deck& deck);

/// "1.2 G FLOPs a token (causal: 1.1 G)"; where documents are masked these are bounds, which sequences of one document have.
std::string describe_flops(const Deck& deck);

}  // namespace tessera
