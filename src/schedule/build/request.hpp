// What a schedule is built from, made in one place for all who build one: run, plan, evaluation, tests.
#pragma once
#include <vector>

#include "deck/deck.hpp"
#include "model/record/recompute.hpp"
#include "model/table/layout.hpp"
#include "model/table/shape.hpp"
#include "schedule/build/stages.hpp"
#include "topology/mesh.hpp"

namespace tessera {

enum class Purpose : std::uint8_t {
  training,
  evaluation,  ///< forward passes: no gradients, no optimizer state
  generation   ///< the same, of a text
};

struct BuildRequest {
  Deck deck;
  Purpose purpose = Purpose::training;
  Layout layout;
  Mesh mesh = {};
  int rank = 0;                               ///< of the mesh
  Group data;                                 ///< the ranks that divide the batch: of dp, and of ep
  Stage stage = {};                           ///< of the pipeline
  std::int64_t evaluation_micro_batches = 0;  ///< per rank, of a pass; 0: no evaluation program
  std::int64_t loss_groups = 0;               ///< groups of tokens whose losses are summed apart: of a training run its files, if several
  TextSize text = {};                         ///< of no capacity: no programs of a text
  /// What each stage makes again; none: what the deck says, which then is not "auto" where there is training.
  std::vector<RecomputeChoice> recompute = {};

  Group group(Axes along) const { return group_of(mesh, along, rank); }
  /// The axes of the mesh that have more than one rank, and dp.
  Axes axes() const;
  /// Ranks beside this one and those that keep boxes of the same tensors: what they keep are others.
  Group others() const { return group(static_cast<Axes>(axes() & ~alike_axes(mesh))); }
  /// What the rank's stage makes again; nullptr: what the deck says.
  const RecomputeChoice* choice() const { return recompute.empty() ? nullptr : &recompute.at(static_cast<std::size_t>(stage.number)); }
  bool training() const { return purpose == Purpose::training; }
};

/// What the rank `world_rank` of a mesh builds. A training run evaluates and makes texts as its deck says, an evaluation runs one
/// micro-batch at a time, a generation none; how long its text is its user says.
BuildRequest request_for(const Deck& deck, const Mesh& mesh, int world_rank, Purpose purpose);

/// What another rank of the same run builds.
BuildRequest request_like(const BuildRequest& like, int world_rank);

/// What lies where on the rank `world_rank` of a mesh.
Layout layout_for(const Deck& deck, const Mesh& mesh, int world_rank);

}  // namespace tessera
