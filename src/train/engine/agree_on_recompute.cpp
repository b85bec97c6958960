#include "train/engine/agree_on_recompute.hpp"

#include <fmt/format.h>

#include <limits>
#include <sstream>

namespace tessera {
namespace {

/// Of each kind of memory the least of all ranks.
MemoryLimits least_of_all(const World& world, MemoryLimits limits) {
  for (auto& limit : limits) {
    constexpr std::int64_t none = std::numeric_limits<std::int64_t>::max();
    for (const std::string& text : world.gather_text(fmt::format("{}", limit ? limit->bytes : none)))
      if (const std::int64_t bytes = std::stoll(text); bytes != none) lower(limit, {bytes, "the memory of another rank"});
  }
  return limits;
}

}  // namespace

std::vector<RecomputeChoice> agree_on_recompute(const World& world, const BuildRequest& request, const MemoryLimits& here) {
  if (!request.training() || request.deck.activation.recompute != Recompute::automatic) return {};
  const MemoryLimits limits = least_of_all(world, with_room_left(here, stated_limits(request.deck, request.mesh.ranks())));
  std::string chosen;
  // One rank looks for all: plans differ where ranks compute with different numbers of threads.
  world.together([&] {
    if (world.rank() != 0) return;
    for (const auto& place : choose_for_stages(request, limits)) chosen += fmt::format("{} {} {} ", place.early, place.late, place.n);
  });
  std::istringstream words(world.broadcast_text(chosen));
  std::vector<RecomputeChoices::Place> places;
  for (RecomputeChoices::Place place; words >> place.early >> place.late >> place.n;) places.push_back(place);
  BuildRequest settled = request;
  take_places(settled, places);
  return settled.recompute;
}

}  // namespace tessera
