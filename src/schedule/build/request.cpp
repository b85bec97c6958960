#include "schedule/build/request.hpp"
#include "model/towers/towers.hpp"
#include "optimizer/groups.hpp"
#include "optimizer/state.hpp"

#include "base/types.hpp"

namespace tessera {

namespace {

/// Whether a stage uses a tensor. The last one has the embedding too where the head is made of it.
bool uses(const Stage& stage, const Parameter& p, bool tied) {
  if (stage.count == 1) return true;
  if (p.part == Part::embedding) return stage.first() || (tied && stage.last());
  if (p.part == Part::positions) return stage.first();
  if (p.part == Part::head) return stage.last();
  return stage.chunk_of(p.layer) >= 0;
}

/// Whether a rank of a group that parts the experts of each layer has a tensor.
bool has(const Group& experts, std::int64_t of_layer, const Parameter& p) {
  return p.expert < 0 || p.expert / (of_layer / experts.size) == experts.rank;
}

/// Of each tensor what a rank keeps: nothing where its stage does not use it or another rank has the expert, else its part along the dim
/// that tensor parallelism cuts, in whole heads and features.
std::vector<Box> kept_boxes(const std::vector<Parameter>& table, const Stage& stage, const ModelKeys& model, const Group& tensor,
                            const Group& experts) {
  std::vector<Box> kept;
  for (const Parameter& p : table) {
    kept.push_back(whole_box(p.shape));
    if (!uses(stage, p, model.tied) || !has(experts, model.experts, p)) {
      kept.back().count.assign(kept.back().count.size(), 0);
      continue;
    }
    if (p.tp_dim < 0 || tensor.size == 1) continue;
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

namespace {

Layout layout_of(const Deck& deck, std::vector<Parameter> table, const Mesh& mesh, int world_rank) {
  const Group owners = group_of(mesh, owner_axes(mesh), world_rank), tensor = group_of(mesh, axes({Axis::tp}), world_rank);
  // What one rank quantises is what several would.
  const std::int64_t small =
      deck.zero.stage == 3 && (owners.size > 1 || deck.zero.quantized_weights) ? deck.zero.param_persistence_threshold : 0;
  const Stage stage = stage_of(deck, mesh, world_rank);
  const Group experts = group_of(mesh, axes({Axis::ep}), world_rank);
  const Group same_experts = group_of(mesh, expert_owner_axes(mesh), world_rank);
  const bool parted = tensor.size > 1 || experts.size > 1;
  if (!parted && stage.count == 1) return make_layout(table, owners.size, small, {}, {}, owners.axes);
  return make_layout(table, owners.size, small, kept_boxes(table, stage, deck.model, tensor, experts),
                     {.over = tensor.size > 1 ? tensor.axes : Axes{0},
                      .copies = tensor.size,
                      .embedding_at_ends = deck.model.tied && stage.count > 1,
                      .expert_owners = parted ? same_experts.axes : Axes{0},
                      .expert_shards = same_experts.size},
                     owners.axes);
}

}  // namespace

Layout layout_for(const Deck& deck, const Mesh& mesh, int world_rank) {
  std::vector<Parameter> table = parameter_table(deck.model);
  require_groups(deck.optimizer, table);
  assign_optimizers(deck.optimizer, table, mesh.size(Axis::tp));
  Layout layout = layout_of(deck, std::move(table), mesh, world_rank);
  for (const TowerRow* row : tower_rows()) {
    if (!row->wanted(deck) || row->shares_tensors(deck)) continue;
    const Deck own = row->deck(deck);
    layout.add_tower(std::string(row->name), layout_of(own, parameter_table(own.model), mesh, world_rank));
  }
  return layout;
}

namespace {

/// Of an evaluation of n micro-batches of a rank those of a pass: a run that is asked to stop leaves it between two.
std::int64_t evaluation_pass(std::int64_t n, int stages) { return n == 0 ? 0 : ceil_div(n, ceil_div(n, std::int64_t{4} * stages)); }

}  // namespace

BuildRequest request_for(const Deck& run, const Mesh& mesh, int world_rank, Purpose purpose) {
  const Deck deck = purpose == Purpose::training ? run : without_towers(run);
  const Group data = batch_group(mesh, world_rank);
  std::int64_t evaluations = purpose == Purpose::evaluation ? 1 : 0;
  const Stage stage = stage_of(deck, mesh, world_rank);
  if (purpose == Purpose::training && deck.evaluate.every > 0)
    evaluations = evaluation_pass(ceil_div(deck.evaluate.batches, data.size), stage.count);
  const std::int64_t files = std::ssize(deck.data.train);
  TextSize text;
  if (purpose == Purpose::training && deck.samples.every > 0)
    text = {.prompt = 1, .capacity = deck.samples.tokens, .likeliest = deck.samples.temperature == 0};
  return {.deck = deck,
          .purpose = purpose,
          .layout = layout_for(deck, mesh, world_rank),
          .mesh = mesh,
          .rank = world_rank,
          .data = data,
          .stage = stage,
          .evaluation_micro_batches = evaluations,
          .loss_groups = purpose == Purpose::training && files > 1 ? files : 0,
          .text = text};
}

BuildRequest request_like(const BuildRequest& like, int world_rank) {
  BuildRequest request = request_for(like.deck, like.mesh, world_rank, like.purpose);
  request.evaluation_micro_batches = like.evaluation_micro_batches, request.loss_groups = like.loss_groups, request.text = like.text,
  request.recompute = like.recompute;
  return request;
}

}  // namespace tessera
