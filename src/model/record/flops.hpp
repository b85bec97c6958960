// The arithmetic of a training step, by which rates are judged: what MFU counts.
#pragma once
#include <string>
#include <vector>

#include "deck/deck.hpp"

namespace tessera {

/// FLOPs of a token in a training step, forward and backward: those of the calls that its texts are left with once what is frozen has no
/// gradients (leave_frozen). Of a model that is trained whole, 6 a matrix weight that a token meets, and of attention 12 L H D for each
/// token of its document. Towers beside the model count with their forward passes. What recompute makes again does not count, nor do the
/// scores that attention's backward pass makes again.
struct FlopsPerToken {
  /// Of the layers with one window.
  struct Attention {
    std::int64_t window = 0;  ///< 0: none
    double flops = 0;         ///< for each token of its document, also for those that come later, as if there were no window
  };
  double products = 0;
  std::vector<Attention> attention = {};

  /// Of tokens whose documents have `length` tokens, in the mean over tokens; with attention as a whole, or as the half that causal
  /// attention needs. Of a window the whole is twice what it lets a query see. Without data.document_mask a document is a sequence. Where
  /// documents of many lengths have windows, this is a bound: what a window leaves of the mean length is at least the mean of what it
  /// leaves.
  double full(double length) const { return products + of_attention(length); }
  double causal(double length) const { return products + of_attention(length) / 2; }
  double of_attention(double length) const;
};
FlopsPerToken flops_per_token(const Deck& deck);

/// "1.2 G FLOPs a token (causal: 1.1 G)"; where documents are masked these are bounds, which sequences of one document have.
std::string describe_flops(const Deck& deck);

}  // namespace tessera
