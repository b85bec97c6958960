// What the ranks of a ring see of each other's keys, by the chunks of a sequence that they have (positions_of) and the window of a layer.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/table/shape.hpp"

namespace tessera {

/// Steps of the ring, each that many ranks further than at its start, whose block some rank sees something of. Without a window all of
/// them, 1 to cp - 1; with one those near either end, since a rank's neighbours in the sequence are those in the ring, on both sides.
std::vector<std::int64_t> ring_turns(const ModelShape& shape);

/// What this rank's queries see of the keys of the rank `step` before it, if anything: half of all pairs, or of them those in the window.
std::optional<kernels::AttentionBlock> ring_block(const ModelShape& shape, std::int64_t step);

/// Pairs of a query and a key in that step, of a sequence and a head: on the rank that has the most of them, so that all plan alike.
double most_ring_pairs(const ModelShape& shape, std::int64_t step);

/// `to`, of a rank that has `positions`, = the starts of a whole sequence's documents as AttentionForward::document_starts counts them: as
/// many rows before each token as its document has tokens before it.
void ring_document_starts(std::span<const std::int32_t> starts, std::span<const Range> positions, std::span<std::int32_t> to);

}  // namespace tessera
