#include "model/layout.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace tessera {
namespace {

/// Rows [first, last) of the table that must stay together.
struct Group {
  std::size_t first, last;
  bool small;
};

std::vector<Group> groups_of(const std::vector<Parameter>& table, std::int64_t threshold) {
  std::vector<Group> groups;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const bool small = table[i].shape.elements() <= threshold;
    if (table[i].joined) {
      groups.back().last = i + 1;
      groups.back().small &= small;
    } else {
      groups.push_back({i, i + 1, small});
    }
  }
  return groups;
}

void append(Unit& unit, const std::vector<Parameter>& table, const Group& group) {
  unit.elements = round_up(unit.elements, shard_block);
  for (std::size_t i = group.first; i < group.last; ++i) {
    const std::int64_t n = table[i].shape.elements();
    unit.slots.push_back({static_cast<int>(i), unit.elements, n});
    unit.elements += n;
  }
}

std::string unit_name(const Parameter& p) {
  switch (p.part) {
    case Part::embedding:
      return "embedding";
    case Part::layer:
      return fmt::format("layers.{}", p.layer);
    case Part::head:
      return "head";
  }
  return "";
}

}  // namespace

Layout make_layout(std::vector<Parameter> table, int shards, std::int64_t persistence_threshold) {
  Layout layout{.table = std::move(table), .units = {}, .shards = shards};
  Unit persistent{.name = "persistent", .slots = {}, .elements = 0, .persistent = true};
  for (const Group& group : groups_of(layout.table, persistence_threshold)) {
    if (group.small) {
      append(persistent, layout.table, group);
      continue;
    }
    std::string name = unit_name(layout.table[group.first]);
    if (layout.units.empty() || layout.units.back().name != name) layout.units.push_back({.name = name, .slots = {}});
    append(layout.units.back(), layout.table, group);
  }
  if (!persistent.slots.empty()) layout.units.push_back(std::move(persistent));
  for (Unit& unit : layout.units) unit.elements = round_up(unit.elements, shards * shard_block);
  return layout;
}

TensorRef Layout::find(std::string_view tensor) const {
  for (std::size_t u = 0; u < units.size(); ++u) {
    const auto& slots = units[u].slots;
    for (std::size_t s = 0; s < slots.size(); ++s) {
      if (table[static_cast<std::size_t>(slots[s].parameter)].name != tensor) continue;
      TensorRef ref{static_cast<int>(u), slots[s].offset, slots[s].elements};
      for (++s; s < slots.size() && table[static_cast<std::size_t>(slots[s].parameter)].joined; ++s) ref.elements += slots[s].elements;
      return ref;
    }
  }
  fail(ExitCode::internal, "no tensor is called {}", tensor);
}

std::vector<Piece> pieces_in(const Unit& unit, std::int64_t begin, std::int64_t end) {
  std::vector<Piece> pieces;
  for (const Slot& slot : unit.slots) {
    const std::int64_t from = std::max(begin, slot.offset), to = std::min(end, slot.offset + slot.elements);
    if (from < to) pieces.push_back({slot.parameter, from, from - slot.offset, to - from});
  }
  return pieces;
}

}  // namespace tessera
