#include "schedule/run/communicators.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace tessera {

Communicator& Communicators::at(Lane lane, Axes axes) const {
  const auto& found = by_lane_[static_cast<std::size_t>(lane)][axes];
  TESSERA_REQUIRE(found, "no communicator of lane {} along {}", name_of(lane), describe(axes));
  return *found;
}

void Communicators::set(Lane lane, Axes axes, std::unique_ptr<Communicator> communicator) {
  by_lane_[static_cast<std::size_t>(lane)][axes] = std::move(communicator);
}

Communicator& Communicators::link(Lane lane, int peer) const {
  const auto found = links_.find({lane, peer});
  TESSERA_REQUIRE(found != links_.end(), "no communicator of lane {} with rank {}", name_of(lane), peer);
  return *found->second;
}

void Communicators::set_link(Lane lane, int peer, std::unique_ptr<Communicator> communicator) {
  links_[{lane, peer}] = std::move(communicator);
}

std::vector<Communicator*> Communicators::all() const {
  std::vector<Communicator*> found;
  for (const auto& groups : by_lane_)
    for (const auto& communicator : groups)
      if (communicator) found.push_back(communicator.get());
  for (const auto& [at, communicator] : links_) found.push_back(communicator.get());
  return found;
}

std::string Communicators::path() const {
  const std::vector<Communicator*> some = all();
  return some.empty() ? "none" : some.front()->path();
}

WantedCommunicators wanted_communicators(const Schedule& schedule) {
  WantedCommunicators wanted;
  wanted.blocks = schedule.collective_blocks;
  for (const Section& section : schedule.sections)
    for (const Task& task : section.tasks)
      if (const auto* collective = std::get_if<Collective>(&task.op))
        wanted.groups.insert({task.lane, collective->axes});
      else if (const auto* transfer = std::get_if<Transfer>(&task.op))
        wanted.links.insert({task.lane, transfer->peer});
  return wanted;
}

WantedCommunicators wanted_communicators(std::span<const Schedule* const> schedules) {
  WantedCommunicators all;
  for (const Schedule* schedule : schedules) {
    WantedCommunicators wanted = wanted_communicators(*schedule);
    all.groups.merge(wanted.groups), all.links.merge(wanted.links);
    all.blocks = std::max(all.blocks, wanted.blocks);
  }
  return all;
}

Communicators make_communicators(const World& world, const Mesh& mesh, const WantedCommunicators& wanted, CommunicatorOptions options) {
  Communicators made;
  made.set_blocks(wanted.blocks);
  for (const auto& [lane, axes] : wanted.groups) {
    options.lane = name_of(lane);
    options.most_blocks = travels_beside_products(lane) ? wanted.blocks : 0;
    made.set(lane, axes, make_communicator(world, group_of(mesh, axes, world.rank()), options));
  }
  options.most_blocks = 0;
  for (const auto& [lane, peer] : wanted.links) {
    const auto [low, high] = std::minmax({peer, world.rank()});
    options.lane = fmt::format("{} between ranks {} and {}", name_of(lane), low, high);
    const Group pair{.axes = axes({Axis::pp}), .rank = world.rank() == high, .size = 2, .world = {low, high}};
    made.set_link(lane, peer, make_communicator(world, pair, options));
  }
  return made;
}

}  // namespace tessera
