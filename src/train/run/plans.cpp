#include "train/run/plans.hpp"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "schedule/plan/cross_check.hpp"
#include "schedule/plan/recompute_choice.hpp"
#include "topology/failure/signals.hpp"
#include "train/engine/agree_on_recompute.hpp"

namespace tessera {

void start_together(const World& world, const std::function<void()>& part) {
  world.together([&] {
    leave_if_stopped();
    part();
  });
}

Schedule draft_schedule(const World& world, const Deck& deck, const Mesh& mesh) {
  std::optional<Schedule> draft;
  start_together(world, [&] {
    BuildRequest request = request_for(deck, mesh, world.rank(), Purpose::training);
    drop_most(request);
    draft = build_schedule(request);
  });
  return std::move(*draft);
}

void require_same_schedules(const World& world, const Mesh& mesh, const Schedule& schedule) {
  world.require_same_lines("schedule", schedule.lines(), group_of(mesh, owner_axes(mesh), world.rank()).world.front());
  for (const Axis axis : all_axes)  // stages of a pipeline are compared by themselves
    if (axis != Axis::pp && mesh.size(axis) > 1 && !contains(alike_axes(mesh), axis))
      world.require_same_lines(fmt::format("order of collectives along {}", name_of(axis)), schedule.collectives_along(axis),
                               group_of(mesh, axes({axis}), world.rank()).world.front());
}

RunPlan plan_for_this_machine(const World& world, const Deck& deck, const Mesh& mesh, const Sharing& sharing) {
  BuildRequest request = request_for(deck, mesh, world.rank(), Purpose::training);
  MemoryLimits limits;
  start_together(world, [&] { limits = limits_here(deck, world.ranks(), sharing); });
  request.recompute = agree_on_recompute(world, request, limits);
  std::optional<RunPlan> plan;
  start_together(world, [&] {
    plan = plan_run(request);
    require_fits(*plan, limits);
  });
  return std::move(*plan);
}

void require_fitting_stages(const World& world, const RunPlan& mine) {
  std::string hashes;
  start_together(world, [&] {
    if (world.rank() != 0) return;
    const std::vector<RunPlan> roles = plan_roles(mine.request);
    if (const std::string fault = cross_check(roles); !fault.empty())
      fail(ExitCode::internal, "the schedules of the stages do not match: {}. This is a defect of Tessera; please report it with the deck.",
           fault);
    for (const RunPlan& role : roles) hashes += fmt::format("{}:{}\n", role.request.rank, role.schedule.hash().hex());
  });
  hashes = world.broadcast_text(hashes);
  const int role = role_of(mine.request.mesh, world.rank());
  start_together(world, [&] {
    if (hashes.find(fmt::format("{}:{}\n", role, mine.schedule.hash().hex())) == hashes.npos)
      fail(ExitCode::environment,
           "the schedule of rank {} on {} differs from the one that rank 0 computes for it. All ranks must run the same binary with the "
           "same deck; compare the nodes",
           world.rank(), world.place().host);
  });
}

}  // namespace tessera
