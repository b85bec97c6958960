#include "schedule/build/request.hpp"

#include "base/types.hpp"

namespace tessera {

namespace {

/// Of each tensor what a tensor-parallel rank keeps: its part along the dim that the axis cuts, in whole heads and features.
std::vector<Box> boxes_over_tp(const std::vector<Parameter>& table, const Group& tensor) {
  std::vector<Box> kept;
  for (const Parameter& p : table) {
    kept.push_back(whole_box(p.shape));
    if (p.tp_dim < 0) continue;
    const auto dim = static_cast<std::size_t>(p.tp_dim);
    const Range mine = part_of(p.shape.dims[dim], tensor.size, tensor.rank);
    kept.back().start[dim] = mine.begin, kept.back().count[dim] = mine.size();
  }
  return kept;
}

}  // namespace

Axes BuildRequest::axes() const {
  Axes set = data_axes;
  for (const Axis axis : all_axes)
    if (mesh.size(axis) > 1) set |= tessera::axes({axis});
  return set;
}

Layout layout_for(const Deck& deck, const Mesh& mesh, int world_rank) {
  const Group owners = group_of(mesh, owner_axes(mesh), world_rank), tensor = group_of(mesh, axes({Axis::tp}), world_rank);
  const std::vector<Parameter> table = parameter_table(deck.model);
  const std::int64_t small = deck.zero.stage == 3 && owners.size > 1 ? deck.zero.param_persistence_threshold : 0;
  if (tensor.size == 1) return make_layout(table, owners.size, small, {}, {}, owners.axes);
  return make_layout(table, owners.size, small, boxes_over_tp(table, tensor), {.over = tensor.axes, .copies = tensor.size}, owners.axes);
}

BuildRequest request_for(const Deck& deck, const Mesh& mesh, int world_rank, Purpose purpose) {
  const Group data = group_of(mesh, data_axes, world_rank);
  std::int64_t evaluations = purpose == Purpose::evaluation ? 1 : 0;
  if (purpose == Purpose::training) evaluations = deck.evaluate.every > 0 ? ceil_div(deck.evaluate.batches, data.size) : 0;
  return {.deck = deck,
          .purpose = purpose,
          .layout = layout_for(deck, mesh, world_rank),
          .mesh = mesh,
          .rank = world_rank,
          .data = data,
          .evaluation_micro_batches = evaluations};
}

}  // namespace tessera
