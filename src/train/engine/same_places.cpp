#include "train/engine/same_places.hpp"

#include <algorithm>
#include <tuple>

#include "base/check.hpp"

namespace tessera {
namespace {

std::size_t shared_by_ranks(const Schedule& schedule) {
  return static_cast<std::size_t>(std::ranges::count(schedule.state, false, &Held::own));
}

const Unit& unit_of(const RunPlan& plan, const Held& held) { return plan.layout().units[static_cast<std::size_t>(held.unit)]; }

auto place_of(const RunPlan& plan, const Held& held) {
  const auto buffer = static_cast<std::size_t>(held.use.buffer);
  return std::tuple(plan.schedule.buffers[buffer].tier, plan.memory.offset[buffer] + held.use.offset, held.use.bytes);
}

bool is_alike(const Held& a, const Held& b) {
  return a.group == b.group && a.elements == b.elements && a.type == b.type && a.of == b.of && a.own == b.own;
}

}  // namespace

void require_same_places(const RunPlan& first, const RunPlan& other) {
  const std::vector<Held>&one = first.schedule.state, &two = other.schedule.state;
  TESSERA_REQUIRE(shared_by_ranks(first.schedule) == shared_by_ranks(other.schedule), "phases have {} and {} parts of the state on rank {}",
                  shared_by_ranks(first.schedule), shared_by_ranks(other.schedule), first.request.rank);
  for (std::size_t h = 0; h < std::min(one.size(), two.size()); ++h) {
    const Unit &mine = unit_of(first, one[h]), &theirs = unit_of(other, two[h]);
    const bool same = is_alike(one[h], two[h]) && mine.name == theirs.name && mine.slots == theirs.slots;
    TESSERA_REQUIRE(same && place_of(first, one[h]) == place_of(other, two[h]),
                    "{} of {} is stored where another phase stores {} of {}, on rank {}", one[h].group, mine.name, two[h].group,
                    theirs.name, first.request.rank);
  }
  TESSERA_REQUIRE(std::ranges::equal(first.schedule.values, other.schedule.values, {}, &RunValue::name, &RunValue::name),
                  "phases carry other values of the run");
}

}  // namespace tessera
