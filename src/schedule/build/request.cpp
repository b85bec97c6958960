#include "schedule/build/request.hpp"

#include "base/types.hpp"

namespace tessera {

Layout layout_for(const Deck& deck, int ranks) {
  const bool persistent = deck.zero.stage == 3 && ranks > 1;
  return make_layout(parameter_table(deck.model), ranks, persistent ? deck.zero.param_persistence_threshold : 0);
}

BuildRequest request_for(const Deck& deck, const Mesh& mesh, int world_rank, Purpose purpose) {
  const Group data = group_of(mesh, data_axes, world_rank);
  std::int64_t evaluations = purpose == Purpose::evaluation ? 1 : 0;
  if (purpose == Purpose::training) evaluations = deck.evaluate.every > 0 ? ceil_div(deck.evaluate.batches, data.size) : 0;
  return {.deck = deck, .purpose = purpose, .layout = layout_for(deck, data.size), .data = data, .evaluation_micro_batches = evaluations};
}

}  // namespace tessera
