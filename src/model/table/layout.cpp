#include "model/table/layout.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <tuple>

#include "base/check.hpp"

namespace tessera {
namespace {

/// Rows [first, last) of the table that must stay together.
struct Together {
  std::size_t first, last;
  bool small;
};

std::vector<Together> groups_of(const std::vector<Parameter>& table, std::int64_t threshold) {
  std::vector<Together> groups;
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

void append(Unit& unit, const std::vector<Box>& kept, const Together& group) {
  unit.elements = round_up(unit.elements, shard_block);
  for (std::size_t i = group.first; i < group.last; ++i) {
    const std::int64_t n = kept[i].elements();
    if (n == 0) continue;
    unit.slots.push_back({static_cast<int>(i), kept[i], unit.elements, n});
    unit.elements += n;
  }
}

/// Whether this rank keeps something of a group: of all its tensors, or of none. Of experts, those of some.
bool keeps(const std::vector<Parameter>& table, const std::vector<Box>& kept, const Together& group) {
  bool any = false;
  for (std::size_t i = group.first; i < group.last; ++i) {
    TESSERA_REQUIRE(lies_in(kept[i], table[i].shape), "{} ({}): box {}", table[i].name, table[i].shape.str(), kept[i].str());
    TESSERA_REQUIRE(table[i].part == Part::experts || (kept[i].elements() > 0) == (kept[group.first].elements() > 0),
                    "{} is kept without {}, to which it is joined", table[i].name, table[group.first].name);
    any |= kept[i].elements() > 0;
  }
  return any;
}

/// Of the expert of all tokens in a unit of its own where tensor-parallel ranks own it together, and of positions where two stages own the
/// embedding.
std::string unit_name(const Parameter& p, bool shared_apart, bool embedding_at_ends) {
  switch (p.part) {
    case Part::embedding:
      return "embedding";
    case Part::positions:  // one end of a pipeline has them
      return embedding_at_ends ? "positions" : "embedding";
    case Part::layer:
      return fmt::format("layers.{}", p.layer);
    case Part::shared:
      return fmt::format("layers.{}{}", p.layer, shared_apart ? ".shared" : "");
    case Part::experts:
      return fmt::format("layers.{}.experts", p.layer);
    case Part::head:
      return "head";
  }
  return "";
}

/// Where each tensor lies, together with those joined to it.
std::map<std::string, TensorRef, std::less<>> places_of(const Layout& layout) {
  std::map<std::string, TensorRef, std::less<>> places;
  for (std::size_t u = 0; u < layout.units.size(); ++u) {
    std::int64_t joined = 0;  // elements that follow and belong to the tensor before them
    const std::vector<Slot>& slots = layout.units[u].slots;
    for (std::size_t s = slots.size(); s-- > 0;) {
      const Slot& slot = slots[s];
      const Parameter& p = layout.table[static_cast<std::size_t>(slot.parameter)];
      const std::int64_t elements = slot.elements + joined;
      places[p.name] = {static_cast<int>(u), slot.offset, elements};
      // Of experts the first may be joined to one that another rank keeps.
      const bool is_neighbour = s > 0 && slots[s - 1].parameter + 1 == slot.parameter;
      joined = p.joined && is_neighbour ? elements : 0;
    }
  }
  return places;
}

/// Units by name, in the order in which their first tensors come; those of the small tensors of all layers come last.
class Units {
 public:
  /// The unit of this name, which is made like `kind` where there is none.
  Unit& at(const std::string& name, const Unit& kind, bool last = false) {
    std::vector<Unit>& units = last ? last_ : units_;
    // Tensors come layer by layer, so it is one of the last ones.
    for (std::size_t u = units.size(); u-- > 0 && u + most_of_layer >= units.size();)
      if (units[u].name == name) return units[u];
    units.push_back(kind);
    units.back().name = name;
    return units.back();
  }
  /// Of the last ones those whose names begin so, in this order, and of each what is trained and what the deck's own optimizer updates
  /// first.
  std::vector<Unit> take(std::span<const std::string_view> order) {
    std::ranges::stable_sort(last_, {}, [&](const Unit& unit) {
      const auto row = std::ranges::find(order, std::string_view(unit.name).substr(0, unit.name.find('.')));
      return std::tuple(row - order.begin(), unit.frozen, unit.optimizer);
    });
    for (Unit& unit : last_) units_.push_back(std::move(unit));
    return std::move(units_);
  }

 private:
  // The layer, its shared expert and its experts, each with what of it is frozen and with what other optimizers update.
  static constexpr std::size_t most_of_layer = 15;

  std::vector<Unit> units_, last_;
};

}  // namespace

Layout make_layout(std::vector<Parameter> table, int shards, std::int64_t persistence_threshold, std::vector<Box> kept,
                   const Replication& replication, Axes owners) {
  if (kept.empty())
    for (const Parameter& p : table) kept.push_back(whole_box(p.shape));
  TESSERA_REQUIRE(kept.size() == table.size(), "{} boxes of {} parameters", kept.size(), table.size());
  Layout layout{.table = std::move(table), .units = {}, .shards = shards, .places = {}};
  const bool copied = replication.copies > 1, parted = replication.expert_owners != 0;
  const Unit of_owners{.name = {}, .slots = {}, .owners = owners, .shards = shards};
  const Unit of_all{.name = {}, .slots = {}, .owners = static_cast<Axes>(owners | replication.over), .shards = shards * replication.copies};
  const Unit of_experts{.name = {}, .slots = {}, .owners = replication.expert_owners, .shards = replication.expert_shards};
  Unit persistent = of_owners, replicated = of_all, untrained = of_all;
  persistent.persistent = replicated.persistent = true;
  untrained.trained = false;
  Units units;
  for (const Together& group : groups_of(layout.table, persistence_threshold)) {
    if (!keeps(layout.table, kept, group)) continue;
    const Parameter& p = layout.table[group.first];
    const auto unit_of = [&](const std::string& name, Unit kind, bool last) -> Unit& {
      kind.frozen = p.frozen, kind.optimizer = p.optimizer;
      return units.at(name + (p.frozen ? ".frozen" : "") + (p.optimizer.empty() ? "" : "." + p.optimizer), kind, last);
    };
    const bool of_parted = parted && p.part == Part::experts, shared_apart = copied && p.part == Part::shared;
    const bool at_ends = replication.embedding_at_ends && p.part == Part::embedding;
    if (!p.trained) {
      append(unit_of("untrained", untrained, true), kept, group);
    } else if (copied && p.tp_dim < 0 && !of_parted && !(shared_apart && !group.small)) {
      append(unit_of("replicated", replicated, true), kept, group);
    } else if (group.small && !at_ends && !of_parted) {
      append(unit_of("persistent", persistent, true), kept, group);
    } else {
      Unit& unit = unit_of(unit_name(p, shared_apart, replication.embedding_at_ends),
                           of_parted      ? of_experts
                           : shared_apart ? of_all
                                          : of_owners,
                           false);
      append(unit, kept, group);
      if (at_ends) unit.owners |= pipeline_ends, unit.shards *= 2, unit.persistent = true;
    }
  }
  constexpr std::array<std::string_view, 3> last = {"persistent", "replicated", "untrained"};
  layout.units = units.take(last);
  for (Unit& unit : layout.units) unit.elements = round_up(unit.elements, unit.shards * shard_block);
  layout.places = places_of(layout);
  return layout;
}

TensorRef Layout::find(std::string_view tensor) const {
  const auto it = places.find(tensor);
  if (it == places.end()) fail(ExitCode::internal, "no tensor is called {}", tensor);
  return it->second;
}

TensorRef Layout::find_alone(std::string_view tensor) const {
  TensorRef ref = find(tensor);
  for (const Slot& slot : units[static_cast<std::size_t>(ref.unit)].slots)
    if (slot.offset == ref.offset) ref.elements = slot.elements;
  return ref;
}

std::vector<Parameter> Layout::model_table() const {
  std::vector<Parameter> rows;
  std::ranges::copy_if(table, std::back_inserter(rows), [](const Parameter& p) { return p.tower.empty(); });
  return rows;
}

void Layout::add_tower(const std::string& tower, Layout of_tower) {
  const auto rows = static_cast<int>(table.size()), before = static_cast<int>(units.size());
  for (Parameter& p : of_tower.table) {
    p.name = fmt::format("{}.{}", tower, p.name), p.tower = tower, p.frozen = true;
    table.push_back(std::move(p));
  }
  for (Unit& unit : of_tower.units) {
    unit.name = fmt::format("{}.{}", tower, unit.name), unit.tower = tower, unit.frozen = true;
    for (Slot& slot : unit.slots) slot.parameter += rows;
    units.push_back(std::move(unit));
  }
  for (const auto& [name, place] : of_tower.places)
    places[fmt::format("{}.{}", tower, name)] = {place.unit + before, place.offset, place.elements};
}

std::vector<Piece> pieces_in(const Unit& unit, std::int64_t begin, std::int64_t end) {
  std::vector<Piece> pieces;
  for (std::size_t s = 0; s < unit.slots.size(); ++s) {
    const Slot& slot = unit.slots[s];
    const std::int64_t from = std::max(begin, slot.offset), to = std::min(end, slot.offset + slot.elements);
    if (from < to) pieces.push_back({slot.parameter, static_cast<int>(s), from, from - slot.offset, to - from});
  }
  return pieces;
}

std::vector<LinesBefore> lines_before(const Layout& layout, const Unit& unit) {
  std::vector<LinesBefore> before = {{}};
  for (const Slot& slot : unit.slots) {
    const Shape& shape = layout.table[static_cast<std::size_t>(slot.parameter)].shape;
    TESSERA_REQUIRE(shape.dims.size() == 2, "{} is no matrix", layout.table[static_cast<std::size_t>(slot.parameter)].name);
    before.push_back({before.back().rows + shape.dims[0], before.back().columns + shape.dims[1]});
  }
  return before;
}

std::int64_t lines_of(const Layout& layout, const Unit& unit, kernels::Extent extent) {
  const LinesBefore all = lines_before(layout, unit).back();
  return extent == kernels::Extent::row ? all.rows : all.columns;
}

void for_each_run(const Layout& layout, const Unit& unit, const Piece& piece, const std::function<void(const NaturalRun&)>& take) {
  const Slot& slot = unit.slots[static_cast<std::size_t>(piece.slot)];
  const Box natural = whole_box(layout.table[static_cast<std::size_t>(piece.parameter)].shape);
  NaturalRun run;  // grows while the next one follows it
  for (const Box& part : flat_range_boxes(slot.box.count, piece.slot_offset, piece.slot_offset + piece.elements))
    for_each_run(outside(part, slot.box), slot.box, natural, [&](const BoxRun& next) {
      if (run.elements > 0 && run.tensor_offset + run.elements == next.to) {
        run.elements += next.elements;
        return;
      }
      if (run.elements > 0) take(run);
      run = {slot.offset + next.from, next.to, next.elements};
    });
  if (run.elements > 0) take(run);
}

}  // namespace tessera
