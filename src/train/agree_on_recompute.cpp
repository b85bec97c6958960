#include "train/agree_on_recompute.hpp"

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
      if (const std::int64_t bytes = std::stoll(text); bytes != none) lower(limit, {bytes, "what another rank has"});
  }
  return limits;
}

}  // namespace

std::optional<RecomputeChoice> agree_on_recompute(const World& world, const BuildRequest& request, const MemoryLimits& here) {
  if (!request.training() || request.deck.activation.recompute != "auto") return std::nullopt;
  const MemoryLimits limits = least_of_all(world, with_room_left(here, stated_limits(request.deck, request.mesh.ranks())));
  std::optional<RecomputeChoices> choices;
  std::string chosen;
  // One rank looks for all: plans differ where ranks compute with different numbers of threads.
  world.together([&] {
    choices.emplace(request.deck);
    if (world.rank() != 0) return;
    const auto place = choose_recompute(request, *choices, limits);
    chosen = fmt::format("{} {} {}", place.early, place.late, place.n);
  });
  RecomputeChoices::Place place;
  std::istringstream(world.broadcast_text(chosen)) >> place.early >> place.late >> place.n;
  return choices->at(place);
}

}  // namespace tessera
