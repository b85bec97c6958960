#include "schedule/run/communicators.hpp"

#include <set>

namespace tessera {

Communicator& Communicators::at(Lane lane, Axes axes) const {
  const auto& found = by_lane_[static_cast<std::size_t>(lane)][axes];
  TESSERA_REQUIRE(found, "no communicator of lane {} along {}", name_of(lane), describe(axes));
  return *found;
}

void Communicators::set(Lane lane, Axes axes, std::unique_ptr<Communicator> communicator) {
  by_lane_[static_cast<std::size_t>(lane)][axes] = std::move(communicator);
}

std::vector<Communicator*> Communicators::all() const {
  std::vector<Communicator*> found;
  for (const auto& groups : by_lane_)
    for (const auto& communicator : groups)
      if (communicator) found.push_back(communicator.get());
  return found;
}

std::string Communicators::path() const {
  const std::vector<Communicator*> some = all();
  return some.empty() ? "none" : some.front()->path();
}

Communicators make_communicators(const World& world, const Mesh& mesh, const Schedule& schedule, CommunicatorOptions options) {
  std::set<std::pair<Lane, Axes>> wanted;  // in an order that all ranks of a group share
  for (const Section& section : schedule.sections)
    for (const Task& task : section.tasks)
      if (const auto* collective = std::get_if<Collective>(&task.op)) wanted.insert({task.lane, collective->axes});
  Communicators made;
  for (const auto& [lane, axes] : wanted) {
    options.lane = name_of(lane);
    made.set(lane, axes, make_communicator(world, group_of(mesh, axes, world.rank()), options));
  }
  return made;
}

}  // namespace tessera
