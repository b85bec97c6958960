// activation.recompute = "auto": the cheapest choice of what is made again with which a plan fits.
#pragma once
#include "schedule/build/builder.hpp"
#include "schedule/plan/limits.hpp"

namespace tessera {

/// What auto chooses among for a stage of a pipeline, which may be all of the model. A pure function of the deck's record.
struct RecomputeChoices {
  std::vector<LevelCost> levels;  ///< recompute_levels(), cheapest first
  std::set<std::string> keep;     ///< of activation.keep
  Stage stage;                    ///< of its layers those with a backward pass
  std::int64_t layers = 0;        ///< that these are
  bool bounded = true;            ///< no layer keeps more than `levels` say: of some that are frozen in unlike parts that is not known

  explicit RecomputeChoices(const BuildRequest& request);
  /// The first `n` layers at level `early`, the others at `late`.
  struct Place {
    int early = 0, late = 0;
    std::int64_t n = 0;
    friend bool operator==(const Place&, const Place&) = default;
  };
  RecomputeChoice at(const Place& place) const;
  /// FLOPs that a micro-batch makes again; calls of kernels decide between equal ones.
  std::pair<double, double> cost(const Place& place) const;
};

/// The cheapest place whose plan fits the limits; where none fits, all layers at the last level. Makes a few dozen plans.
RecomputeChoices::Place choose_recompute(const BuildRequest& request, const RecomputeChoices& choices, const MemoryLimits& limits);

/// The place of each stage of the run that a request is of. Stages differ in what they hold and in the micro-batches under way.
std::vector<RecomputeChoices::Place> choose_for_stages(const BuildRequest& request, const MemoryLimits& limits);
/// Puts the places of all stages into a request.
void take_places(BuildRequest& request, const std::vector<RecomputeChoices::Place>& places);

/// Settles `auto` in a request that trains, for all stages; does nothing to others.
void settle_recompute(BuildRequest& request, const MemoryLimits& limits);
/// The same for the request's own stage, for who asks of no other.
void settle_own_recompute(BuildRequest& request, const MemoryLimits& limits);

/// Settles it without limits, so that most is made again: a schedule whose collectives are those of any other choice.
void drop_most(BuildRequest& request);

/// "mlp.gate_up in the first 42 of 80 layers, nothing in the others"; the layers are those of the stage.
std::string describe(const RecomputeChoice& choice, const Stage& stage);

}  // namespace tessera
