// What ranks plan for themselves at a start, and agree on, before memory is taken.
#pragma once
#include <functional>

#include "schedule/plan/run_plan.hpp"
#include "topology/world.hpp"
#include "train/engine/fit.hpp"

namespace tessera {

/// World::together of a part of the start: whoever was asked to stop before it takes all ranks out of it, since there is nothing to save
/// yet.
void start_together(const World& world, const std::function<void()>& part);

/// Before it is known what fits: a schedule for its communicators alone.
Schedule draft_schedule(const World& world, const Deck& deck, const Mesh& mesh);

/// Ranks with the same parameters run the same schedule; the others meet them in collectives, which must be the same. See
/// World::require_same_lines.
void require_same_schedules(const World& world, const Mesh& mesh, const Schedule& schedule);

/// Settles what the deck of a phase leaves to the memory that there is. AgreedError(memory) where it does not fit.
RunPlan plan_for_this_machine(const World& world, const Deck& deck, const Mesh& mesh, const Sharing& sharing);

/// Stages run schedules of their own: one rank plays those of all roles together, and each must have that of its role.
void require_fitting_stages(const World& world, const RunPlan& mine);

}  // namespace tessera
