#include "schedule/build/buffers.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace tessera {

Buffers::Buffers(const Frame& frame, std::vector<Buffer>& list) : frame_(frame), list_(list) {
  // About as many as a model of many layers has: growing costs more than finding.
  by_name_.reserve(32 * static_cast<std::size_t>(frame.shape.L));
}

int Buffers::declare(const std::string& name, Category category, Tier tier, std::int64_t bytes, Life life) {
  const auto [it, fresh] = by_name_.try_emplace(name, static_cast<int>(list_.size()));
  if (fresh) {
    list_.push_back({name, category, tier, bytes, life});
    if (tier == Tier::nvme) list_.back().alignment = frame_.deck.nvme.block_bytes();
  } else {
    Buffer& known = (*this)[it->second];
    TESSERA_REQUIRE(known.life == life && known.tier == tier, "buffer {} is declared in two ways", name);
    known.bytes = std::max(known.bytes, bytes);
  }
  return it->second;
}

void Buffers::input(const std::string& name, Category category, std::int64_t bytes, std::int64_t slots) {
  (*this)[declare(name, category, frame_.local_tier, bytes, Life::run)].slots = slots;
  if (frame_.on_gpu()) (*this)[declare(host_side(name), category, Tier::pinned, bytes, Life::run)].slots = slots;
}

Use Buffers::slot(const std::string& name, std::int64_t shift, Access access) const {
  const int id = named(name);
  return {id, 0, (*this)[id].slot_bytes(), access, true, shift};
}

Use Buffers::in_slots(const std::string& name, Tier tier, std::int64_t bytes, std::int64_t slots, Access access, std::int64_t shift,
                      Category category, Life life) {
  // Each slot begins where a buffer of its own could.
  const int id = declare(name, category, tier, slots * round_up(bytes, plan_alignment), life);
  (*this)[id].slots = slots;
  return {id, 0, bytes, access, true, shift};
}

Use Buffers::staging(const std::string& name, std::int64_t bytes, Access access) {
  const std::int64_t turn = staged_[name]++ % frame_.deck.zero.offload_optimizer.buffer_count;
  return first_of(fmt::format("staging.{}#{}", name, turn), Category::workspace, frame_.below_tier, bytes, access);
}

Use Buffers::parameters(int unit, const Range& elements, Access access) const {
  return {named("parameters." + frame_.unit_at(unit).name),
          frame_.parameter_bytes(unit, elements.begin - frame_.plan(unit).parameters.begin), frame_.parameter_bytes(unit, elements.size()),
          access};
}

Use Buffers::gradients(int unit, const Range& elements, Access access) const {
  const UnitPlan& p = frame_.plan(unit);
  const bool below = p.gradient.offloaded;
  const std::int64_t begin = below ? p.owned.begin : p.gradient.held.begin;
  return {named((below ? "offloaded_gradients." : "gradients.") + frame_.unit_at(unit).name),
          frame_.gradient_bytes(unit, elements.begin - begin), frame_.gradient_bytes(unit, elements.size()), access};
}

Use Buffers::state(const StateRow& row, int unit, const Range& elements, Access access) const {
  if (row.of != kernels::Extent::element) return whole(fmt::format("{}.{}", row.group, frame_.unit_at(unit).name), access);
  return {named(fmt::format("{}.{}", row.group, frame_.unit_at(unit).name)), row.bytes(elements.begin - frame_.plan(unit).state.begin),
          row.bytes(elements.size()), access};
}

Use Buffers::master(int unit, const Range& elements, Access access) const {
  const UnitPlan& p = frame_.plan(unit);
  if (frame_.copy_is_master(unit)) return parameters(unit, elements, access);
  return {named("master." + frame_.unit_at(unit).name), 4 * (elements.begin - p.state.begin), 4 * elements.size(), access};
}

}  // namespace tessera
