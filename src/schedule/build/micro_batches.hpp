// How a global batch is cut into micro-batches, and which rank runs which.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "deck/deck.hpp"

namespace tessera {

/// Micro-batches that every rank runs in one step. All ranks run the same schedule, so where the micro-batches of the global batch cannot
/// be shared evenly, some ranks run empty ones: without targets they add exactly nothing to loss and gradients.
std::int64_t accumulation_steps(const Deck& deck, int ranks);

/// The share of a step's micro-batches that are empty.
double empty_share(const Deck& deck, int ranks);

/// Number, within the global batch, of the micro-batch that a rank of the batch's group runs as its `place`-th; none for an empty one. The
/// mesh.ep ranks that exchange rows run as many micro-batches in a row at each place.
std::optional<std::int64_t> micro_batch_at(const Deck& deck, int ranks, int rank, std::int64_t place);

/// What a user is told: sequences, micro-batches, and what empty ones cost.
std::string describe_batch(const Deck& deck, int ranks);
/// Of a phase in which 1-bit Adam warms up, after its batch; else nothing.
std::string describe_warmup(const Deck& deck);
/// The same of each phase before the last, with the steps that it has.
std::vector<std::string> describe_ramp(const Deck& deck, int ranks);

}  // namespace tessera
