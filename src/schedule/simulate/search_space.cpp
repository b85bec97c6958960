#include "schedule/simulate/search_space.hpp"

#include <algorithm>
#include <set>

#include "schedule/build/request.hpp"

namespace tessera {
namespace {

using SpaceLevel = std::vector<Change>;  // of one axis

/// The deck's other memories, as far as the profile knows how fast they are. Host ranks have one only where the deck says what kernels have
/// of theirs.
std::vector<OffloadDevice> devices_of(const Deck& deck, const MachineProfile& machine) {
  std::vector<OffloadDevice> devices{OffloadDevice::none};
  const bool second = deck.run.device == RunDevice::cuda || deck.memory.device > 0;
  if (!second || machine.transfer.up <= 0) return devices;
  if (machine.host.adamw > 0) devices.push_back(OffloadDevice::host);
  if (machine.host.adamw > 0 && machine.disk.read > 0) devices.push_back(OffloadDevice::nvme);
  return devices;
}

/// Stage, and where optimizer and parameters lie.
std::vector<SpaceLevel> layout_levels(const Deck& deck, const std::vector<OffloadDevice>& devices) {
  const std::optional<Change> path = example_path_change(deck);
  std::vector<SpaceLevel> levels;
  for (std::int64_t stage = 0; stage <= 3; ++stage)
    for (const OffloadDevice optimizer : devices)
      for (const OffloadDevice parameters : devices) {
        SpaceLevel level{stage_change(stage), offload_optimizer_change(optimizer), offload_param_change(parameters)};
        if ((optimizer == OffloadDevice::nvme || parameters == OffloadDevice::nvme) && path) level.push_back(*path);
        levels.push_back(std::move(level));
      }
  return levels;
}

/// What of activations is made again, and where kept streams wait.
std::vector<SpaceLevel> activation_levels(const Deck& deck, const std::vector<OffloadDevice>& devices) {
  const ActivationKeys& now = deck.activation;
  const std::optional<Change> path = example_path_change(deck);
  SpaceLevel none{recompute_change(now, Recompute::none)};
  if (!now.keep.empty()) none.push_back({"activation.keep=[]", [](Deck& d) { d.activation.keep.clear(); }});
  std::vector<SpaceLevel> recompute{none, {recompute_change(now, Recompute::selective)}, {recompute_change(now, Recompute::full)}}, levels;
  if (now.recompute == Recompute::full && now.every > 1) recompute.push_back({recompute_change(now, Recompute::full, now.every)});
  for (const OffloadDevice device : devices)
    for (SpaceLevel level : recompute) {
      level.push_back(offload_activation_change(device));
      if (device == OffloadDevice::nvme && path) level.push_back(*path);
      levels.push_back(std::move(level));
    }
  return levels;
}

/// What is gathered ahead: as the deck says, nothing, or one layer; and what is kept between two uses: as the deck says, or nothing.
std::vector<SpaceLevel> bucket_levels(const Deck& deck, std::int64_t layer) {
  const std::set<std::int64_t> ahead{deck.zero.prefetch_bucket_size, 0, layer}, kept{deck.zero.max_reuse_distance, 0};
  std::vector<SpaceLevel> levels;
  for (const std::int64_t a : ahead)
    for (const std::int64_t k : kept) levels.push_back({prefetch_change(a), reuse_change(k)});
  const auto changes = [&](const SpaceLevel& level) {
    Deck changed = deck;
    for (const Change& c : level) c.apply(changed);
    return (changed.zero.prefetch_bucket_size != deck.zero.prefetch_bucket_size) +
           (changed.zero.max_reuse_distance != deck.zero.max_reuse_distance);
  };
  std::ranges::stable_sort(levels, {}, changes);
  return levels;
}

std::int64_t elements_of_a_layer(const Deck& deck, int ranks) {
  const Layout layout = layout_for(deck, make_mesh(deck, ranks), 0);
  std::int64_t most = 0;
  for (const Unit& unit : layout.units)
    if (unit.name.starts_with("layers.")) most = std::max(most, unit.elements);
  return most;
}

SearchPoint changed(SearchPoint point, const SpaceLevel& level) {
  for (const Change& c : level) {
    const Deck then = point.deck;
    c.apply(point.deck);
    if (point.deck != then) point.changes.push_back(c);
  }
  return point;
}

}  // namespace

std::vector<SearchPoint> search_space(const Deck& deck, const MachineProfile& machine, int ranks) {
  const std::vector<SpaceLevel> buckets = bucket_levels(deck, elements_of_a_layer(deck, ranks));
  const std::vector<OffloadDevice> devices = devices_of(deck, machine);
  // No rule holds between a layout and the rest, so that each is asked alone.
  std::vector<SearchPoint> layouts;
  for (const SpaceLevel& level : layout_levels(deck, devices))
    if (SearchPoint point = changed({.changes = {}, .deck = deck, .layout = layouts.size()}, level); is_allowed(point.deck, ranks))
      layouts.push_back(std::move(point));
  const std::vector<SpaceLevel> activations = activation_levels(deck, devices);
  std::vector<std::pair<std::size_t, std::int64_t>> inner;
  for (std::size_t a = 0; a < activations.size(); ++a)
    for (const std::int64_t micro : micro_sizes(deck.batch, batch_ranks(make_mesh(deck, ranks))))
      if (is_allowed(changed(changed({.changes = {}, .deck = deck}, activations[a]), {micro_change(micro)}).deck, ranks))
        inner.emplace_back(a, micro);
  std::vector<SearchPoint> points;
  std::size_t group = 0;
  for (const SearchPoint& layout : layouts)
    for (const auto& [activation, micro] : inner) {
      SearchPoint core = changed(changed(layout, activations[activation]), {micro_change(micro)});
      core.activation = activation, core.group = group++;
      if (core.deck.zero.stage < 3) {
        points.push_back(std::move(core));
        continue;
      }
      for (const SpaceLevel& level : buckets) points.push_back(changed(core, level));
    }
  return points;
}

}  // namespace tessera
