// Changes of a deck's layout, each as a user writes it and as it is done: what remedies and recommendations are made of.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "deck/deck.hpp"

namespace tessera {

struct Change {
  std::string text;  ///< overrides: "zero.stage=2"
  std::function<void(Deck&)> apply;
};

/// activation.recompute and activation.every of a deck that has the values of `now`.
Change recompute_change(const ActivationKeys& now, Recompute mode, std::int64_t every = 1);
Change stage_change(std::int64_t stage);
Change offload_optimizer_change(OffloadDevice device);
Change offload_param_change(OffloadDevice device);
Change offload_activation_change(OffloadDevice device);
Change pageable_optimizer_change();
Change pageable_param_change();
/// Saves stop the steps, and need no copy of the state.
Change waiting_saves_change(const CheckpointKeys& now);
/// Of a deck that names no folder for what it lays on disks, an example of one; nothing of others.
std::optional<Change> example_path_change(const Deck& deck);
Change micro_change(std::int64_t micro);
Change prefetch_change(std::int64_t elements);
Change reuse_change(std::int64_t elements);
Change gradients_change(DType dtype);

/// One after the other.
Change both(const Change& first, const Change& second);

/// The texts in one line: what is written behind `tessera plan DECK`.
std::string overrides_of(const std::vector<Change>& changes);

/// The values of batch.micro that divide the global batch and leave no rank of so many without one, and the deck's own; falling.
std::vector<std::int64_t> micro_sizes(const BatchKeys& batch, int ranks);

}  // namespace tessera
