#include "schedule/build/matrix_updates.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "kernels/newton_schulz/newton_schulz.hpp"
#include "schedule/build/unit_update.hpp"
#include "zero/longest_first.hpp"

namespace tessera {
namespace {

/// Elements of units whose matrices are on their way at a time, where one has not more: 256 MiB with their results. Among more matrices
/// their owners are balanced better.
constexpr std::int64_t most_at_once = std::int64_t{1} << 26;
/// Results begin where any product reads them fast.
constexpr std::int64_t grain = 128;

constexpr std::int64_t matrix_bytes(std::int64_t elements) { return elements * static_cast<std::int64_t>(sizeof(bf16)); }

/// A unit's matrices, each at one of the ranks that share its state.
struct WholeMatrices {
  int unit = 0;
  Group parts = {}, sharing = {};  ///< ranks that have a part of each, and those that divide them among themselves
  struct Place {
    int owner = 0;
    std::int64_t offset = 0;  ///< in the owner's block of results
  };
  std::vector<Place> places = {};  ///< by slot
  std::int64_t block = 0;          ///< elements of an owner's results, at most
};

Group parts_of_matrices(const Emitter& out, int unit) {
  const auto is_part = [&](const Slot& slot) { return slot.elements < out.frame.layout.table[index(slot.parameter)].shape.elements(); };
  return std::ranges::any_of(out.frame.unit_at(unit).slots, is_part) ? out.frame.request.group(axes({Axis::tp})) : Group{};
}

Group sharing_matrices(const Emitter& out, int unit) {
  return out.frame.request.group(static_cast<Axes>(out.frame.plan(unit).owners.axes | parts_of_matrices(out, unit).axes));
}

void emit_gather_of_matrices(Emitter& out, int unit) {
  const UnitPlan& p = out.frame.plan(unit);
  const std::int64_t bucket = out.frame.bucket(out.frame.deck.zero.allgather_bucket_size);
  for (const Range& cut : cut_shard(p.storage.optimizer_whole ? 0 : p.shard, p.owners.size, bucket)) {
    const Range all{cut.begin, (p.owners.size - 1) * p.shard + cut.end}, mine{p.owned.begin + cut.begin, p.owned.begin + cut.end};
    out.emit({.name = "gather matrices of " + out.frame.unit_at(unit).name,
              .op = Collective{CollectiveKind::all_gather, p.owners.axes, cut.size(), p.shard, DType::bf16},
              .lane = Lane::gather,
              .uses = {matrices_of(out, unit, all, Access::write), matrices_of(out, unit, mine, Access::read)},
              .bytes_moved = static_cast<double>(matrix_bytes(cut.size())) * (p.owners.size - 1)});
  }
  const Group parts = parts_of_matrices(out, unit);
  if (parts.size == 1) return;
  const Use mine = matrices_of(out, unit, {0, out.frame.unit_at(unit).elements}, Access::read);
  const std::int64_t count = out.frame.unit_at(unit).elements;
  out.emit({.name = "gather parts of matrices of " + out.frame.unit_at(unit).name,
            .op = Collective{CollectiveKind::all_gather, parts.axes, count, count, DType::bf16},
            .lane = Lane::gather,
            .uses = {out.buffers.whole(mine.buffer, Access::write), mine},
            .bytes_moved = static_cast<double>(mine.bytes) * (parts.size - 1)});
}

std::vector<WholeMatrices> whole_matrices(const Emitter& out, const std::vector<int>& units) {
  // Those that the same ranks share are balanced together.
  std::map<Axes, std::vector<double>> costs;
  for (const int u : units)
    for (const Slot& slot : out.frame.unit_at(u).slots) {
      const Shape& shape = out.frame.layout.table[index(slot.parameter)].shape;
      costs[sharing_matrices(out, u).axes].push_back(kernels::newton_schulz_flops(shape.dims[0], shape.dims[1]));
    }
  std::map<Axes, std::vector<int>> owners;
  std::map<Axes, std::size_t> next;
  std::vector<WholeMatrices> all;
  for (const int u : units) {
    WholeMatrices& whole =
        all.emplace_back(WholeMatrices{.unit = u, .parts = parts_of_matrices(out, u), .sharing = sharing_matrices(out, u)});
    const Group& sharing = whole.sharing;
    std::vector<int>& owner = owners[sharing.axes];
    if (owner.empty()) owner = longest_first(costs[sharing.axes], sharing.size);
    std::vector<std::int64_t> used(index(sharing.size));
    for (const Slot& slot : out.frame.unit_at(u).slots) {
      const int of = owner[next[sharing.axes]++];
      whole.places.push_back({of, used[index(of)]});
      used[index(of)] += round_up(out.frame.layout.table[index(slot.parameter)].shape.elements(), grain);
    }
    whole.block = *std::ranges::max_element(used);
  }
  return all;
}

Use results_of(Emitter& out, const WholeMatrices& whole, int first, int count, Access access) {
  const std::string name = "orthogonal." + out.frame.unit_at(whole.unit).name;
  const std::int64_t block = matrix_bytes(whole.block);
  const int buffer = out.buffers.declare(name, Category::workspace, out.frame.comm_tier, block * whole.sharing.size);
  return {buffer, block * first, block * count, access};
}

Orthogonalize::Matrix matrix_of(const Emitter& out, const WholeMatrices& whole, std::size_t slot) {
  const Slot& s = out.frame.unit_at(whole.unit).slots[slot];
  const Parameter& p = out.frame.layout.table[index(s.parameter)];
  const bool cut = s.elements < p.shape.elements();
  TESSERA_REQUIRE(!cut || (p.tp_dim >= 0 && s.box.count[index(p.tp_dim)] * whole.parts.size == p.shape.dims[index(p.tp_dim)]),
                  "{} of {} is not a part of {}", s.box.str(), p.name, whole.parts.size);
  return {.from = s.offset,
          .to = whole.sharing.size == 1 ? s.offset : whole.places[slot].offset,
          .rows = p.shape.dims[0],
          .columns = p.shape.dims[1],
          .scale = out.frame.optimizer_of(whole.unit).update.orthogonal->scale(p.shape.dims[0], p.shape.dims[1]),
          .parts = cut ? whole.parts.size : 1,
          .parts_of_columns = cut && p.tp_dim == 1};
}

void emit_orthogonal(Emitter& out, const WholeMatrices& whole) {
  const Unit& unit = out.frame.unit_at(whole.unit);
  const bool alone = whole.sharing.size == 1;
  Orthogonalize op{.steps = out.frame.optimizer_of(whole.unit).update.orthogonal->steps, .part_step = unit.elements, .matrices = {}};
  double flops = 0;
  std::int64_t bytes = 0;  // of workspace: the same on all ranks
  for (std::size_t s = 0; s < unit.slots.size(); ++s) {
    const Orthogonalize::Matrix m = matrix_of(out, whole, s);
    const kernels::NewtonSchulz shape{.rows = m.rows, .columns = m.columns, .parts = m.parts, .parts_of_columns = m.parts_of_columns};
    bytes = std::max(bytes, static_cast<std::int64_t>(kernels::newton_schulz_workspace_bytes(shape, out.frame.shape.backend)));
    if (whole.places[s].owner != whole.sharing.rank) continue;
    op.matrices.push_back(m);
    flops += kernels::newton_schulz_flops(m.rows, m.columns);
  }
  const Use workspace = out.buffers.workspace("workspace.matrices", out.frame.local_tier, bytes);
  const int matrices = matrices_of(out, whole.unit, {}, Access::read).buffer;
  out.emit({.name = "orthogonalize " + unit.name,
            .op = std::move(op),
            .uses = {out.buffers.whole(matrices, alone ? Access::add : Access::read),
                     alone ? out.buffers.absent() : results_of(out, whole, whole.sharing.rank, 1, Access::write), workspace},
            .flops = flops});
}

void emit_results(Emitter& out, const WholeMatrices& whole) {
  const Group& sharing = whole.sharing;
  if (sharing.size == 1) return;
  const Unit& unit = out.frame.unit_at(whole.unit);
  const Range& state = out.frame.plan(whole.unit).state;
  out.emit({.name = "gather orthogonal matrices of " + unit.name,
            .op = Collective{CollectiveKind::all_gather, sharing.axes, whole.block, whole.block, DType::bf16},
            .lane = Lane::gather,
            .uses = {results_of(out, whole, 0, sharing.size, Access::write), results_of(out, whole, sharing.rank, 1, Access::read)},
            .bytes_moved = static_cast<double>(matrix_bytes(whole.block)) * (sharing.size - 1)});
  CopyRuns op{.dtype = DType::bf16, .runs = {}};
  for (const Piece& piece : pieces_in(unit, state.begin, state.end)) {
    const Slot& slot = unit.slots[index(piece.slot)];
    const WholeMatrices::Place& place = whole.places[index(piece.slot)];
    const int part = slot.elements < out.frame.layout.table[index(slot.parameter)].shape.elements() ? whole.parts.rank : 0;
    op.runs.push_back({.to = piece.unit_offset - state.begin,
                       .from = place.owner * whole.block + place.offset + part * slot.elements + piece.slot_offset,
                       .elements = piece.elements});
  }
  out.emit({.name = "take orthogonal matrices of " + unit.name,
            .op = std::move(op),
            .uses = {matrices_of(out, whole.unit, state, Access::write), results_of(out, whole, 0, sharing.size, Access::read)}});
}

}  // namespace

bool takes_matrices(const Emitter& out, int unit) {
  return out.frame.unit_at(unit).learns() && out.frame.optimizer_of(unit).update.orthogonal.has_value();
}

void emit_updates_of_matrices(Emitter& out) {
  std::vector<int> some;
  std::int64_t elements = 0;
  const auto emit_some = [&] {
    emit_updates_of_matrices(out, some);
    some.clear(), elements = 0;
  };
  for (int u = 0; u < out.frame.units(); ++u) {
    if (!takes_matrices(out, u)) continue;
    if (!some.empty() && elements + out.frame.unit_at(u).elements > most_at_once) emit_some();
    some.push_back(u), elements += out.frame.unit_at(u).elements;
  }
  emit_some();
}

void emit_updates_of_matrices(Emitter& out, const std::vector<int>& units) {
  for (const int u : units) {
    emit_optimizer(out, u, out.frame.optimizer_of(u).update.phases[0].calls);
    emit_gather_of_matrices(out, u);
  }
  const std::vector<WholeMatrices> whole = whole_matrices(out, units);
  for (const WholeMatrices& w : whole) emit_orthogonal(out, w);
  for (const WholeMatrices& w : whole) {
    emit_results(out, w);
    emit_optimizer(out, w.unit, out.frame.optimizer_of(w.unit).update.phases[1].calls);
    if (!out.frame.refreshed_first(w.unit)) emit_publish_gather(out, w.unit, Lane::gather);
  }
}

void emit_matrices_between_tiers(Emitter& out, int unit, const Range& elements, const Use& below, bool up) {
  const Use here = matrices_of(out, unit, elements, up ? Access::write : Access::read);
  const Use there{below.buffer, below.offset, below.bytes, up ? Access::read : Access::write};
  out.emit({.name = fmt::format("{} matrices of {}", up ? "upload" : "download", out.frame.unit_at(unit).name),
            .op = Copy{},
            .lane = up ? Lane::upload : Lane::download,
            .uses = {up ? here : there, up ? there : here},
            .bytes_moved = static_cast<double>(below.bytes)});
}

Use matrices_of(Emitter& out, int unit, const Range& elements, Access access) {
  const std::int64_t all = out.frame.unit_at(unit).elements;
  const Group parts = parts_of_matrices(out, unit);
  const int buffer = out.buffers.declare("matrices." + out.frame.unit_at(unit).name, Category::workspace, out.frame.comm_tier,
                                         matrix_bytes(all) * parts.size);
  return {buffer, matrix_bytes(parts.rank * all + elements.begin), matrix_bytes(elements.size()), access};
}

}  // namespace tessera
