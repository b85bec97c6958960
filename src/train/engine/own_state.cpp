// State that each rank has of its own (Held::own): where it lies in a checkpoint, and whether one of another run has it for this rank.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "train/engine/state.hpp"

namespace tessera {

io::CheckpointUnit ModelState::own_unit(const Held& held, const io::CheckpointLayout& layout) const {
  const Unit& unit = unit_of(held);
  const std::vector<int> ranks = plan_.request.group(unit.owners).world;
  std::vector<int> all(static_cast<std::size_t>(layout.shards));
  std::iota(all.begin(), all.end(), 0);
  const auto group = static_cast<int>(std::ranges::find(layout.groups, held.group) - layout.groups.begin());
  return {.name = fmt::format("{}.{}", unit.name, held.group),
          .elements = std::ssize(ranks) * held.elements.size(),
          .holders = ranks == all ? std::vector<int>() : ranks,
          .groups = {group}};
}

std::optional<int> ModelState::find_own(const Held& held, const io::CheckpointLayout& layout) const {
  const io::CheckpointUnit wanted = own_unit(held, layout);
  const auto found = std::ranges::find(layout.units, wanted.name, &io::CheckpointUnit::name);
  const auto holders = [&](const io::CheckpointUnit& unit) {
    return unit.holders.empty() ? layout.shards : static_cast<int>(std::ssize(unit.holders));
  };
  if (found == layout.units.end() || found->elements != wanted.elements || holders(*found) != holders(wanted)) return {};
  return static_cast<int>(found - layout.units.begin());
}

bool ModelState::leaves_own(const io::SavedState& from) const {
  return std::ranges::any_of(plan_.schedule.state, [&](const Held& held) {
    return held.own && std::ranges::count(from.layout().groups, held.group) > 0 && !find_own(held, from.layout());
  });
}

}  // namespace tessera
