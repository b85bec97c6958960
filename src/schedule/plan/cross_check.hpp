// Do the ranks of a mesh fit together? A pure function over what they will run, before any of them does.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "schedule/plan/run_plan.hpp"

namespace tessera {

/// The rank that stands for those that divide the batch with it: they run the same schedule. Of replicas the first counts norms, so it
/// stands for itself, and the second for the others.
int role_of(const Mesh& mesh, int rank);
/// What one rank of each role runs: those that divide the batch, along dp and ep, run the same, so the first of them stands for all. `like`
/// is of any rank.
std::vector<RunPlan> plan_roles(const BuildRequest& like);

/// Programs of several roles played together, lanes side by side with the waits that executors wait for: a transfer or a collective takes
/// place when all of them who take part have come to it, and they must mean the same.
struct PlayedTogether {
  /// Empty where every program ends; else what is wrong, with two ranks and their tasks: what meets and does not match, or who waits for
  /// whom for ever.
  std::string fault;
  double seconds = 0;  ///< until all have ended; of tasks whose time is known
};
/// `seconds`: of each role its tasks' times, by section and task; none: they take no time. Ranks of roles that are not among them do not
/// keep anybody waiting. `progress` hears now and then how much has been done, of 1.
PlayedTogether play_together(std::span<const RunPlan> roles, ProgramKind kind,
                             std::span<const std::vector<std::vector<double>>> seconds = {},
                             const std::function<void(double)>& progress = {});

/// The first fault of any program; all roles must be there.
std::string cross_check(std::span<const RunPlan> roles);

}  // namespace tessera
