// Updates that take whole matrices (Muon). Momenta are made where their shards are and meet in bf16; each matrix is then made orthogonal by
// one of the ranks that share its unit's state, and the results go back to the shards.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "kernels/newton_schulz/newton_schulz.hpp"
#include "schedule/build/section_builder.hpp"
#include "zero/longest_first.hpp"

namespace tessera {
namespace {

/// Elements of units whose matrices are on their way at a time, where one has not more: 256 MiB with their results. Among more matrices
/// their owners are balanced better.
constexpr std::int64_t most_at_once = std::int64_t{1} << 26;
/// Results begin where any product reads them fast.
constexpr std::int64_t grain = 128;

constexpr std::int64_t matrix_bytes(std::int64_t elements) { return elements * static_cast<std::int64_t>(sizeof(bf16)); }

}  // namespace

bool SectionBuilder::takes_matrices(int unit) const {
  return frame_.unit_at(unit).learns() && frame_.optimizer_of(unit).update.orthogonal.has_value();
}

void SectionBuilder::emit_updates_of_matrices() {
  std::vector<int> some;
  std::int64_t elements = 0;
  const auto emit_some = [&] {
    emit_updates_of_matrices(some);
    some.clear(), elements = 0;
  };
  for (int u = 0; u < frame_.units(); ++u) {
    if (!takes_matrices(u)) continue;
    if (!some.empty() && elements + frame_.unit_at(u).elements > most_at_once) emit_some();
    some.push_back(u), elements += frame_.unit_at(u).elements;
  }
  emit_some();
}

void SectionBuilder::emit_updates_of_matrices(const std::vector<int>& units) {
  for (const int u : units) {
    emit_optimizer(u, frame_.optimizer_of(u).update.phases[0].calls);
    emit_gather_of_matrices(u);
  }
  const std::vector<WholeMatrices> whole = whole_matrices(units);
  for (const WholeMatrices& w : whole) emit_orthogonal(w);
  for (const WholeMatrices& w : whole) {
    emit_results(w);
    emit_optimizer(w.unit, frame_.optimizer_of(w.unit).update.phases[1].calls);
    if (!frame_.refreshed_first(w.unit)) emit_publish_gather(w.unit, Lane::gather);
  }
}

Group SectionBuilder::parts_of_matrices(int unit) const {
  const auto is_part = [&](const Slot& slot) { return slot.elements < frame_.layout.table[index(slot.parameter)].shape.elements(); };
  return std::ranges::any_of(frame_.unit_at(unit).slots, is_part) ? frame_.request.group(axes({Axis::tp})) : Group{};
}

Group SectionBuilder::sharing_matrices(int unit) const {
  return frame_.request.group(static_cast<Axes>(frame_.plan(unit).owners.axes | parts_of_matrices(unit).axes));
}

Use SectionBuilder::matrices_of(int unit, const Range& elements, Access access) {
  const std::int64_t all = frame_.unit_at(unit).elements;
  const Group parts = parts_of_matrices(unit);
  const int buffer =
      buffers_.declare("matrices." + frame_.unit_at(unit).name, Category::workspace, frame_.comm_tier, matrix_bytes(all) * parts.size);
  return {buffer, matrix_bytes(parts.rank * all + elements.begin), matrix_bytes(elements.size()), access};
}

void SectionBuilder::emit_gather_of_matrices(int unit) {
  const UnitPlan& p = frame_.plan(unit);
  const std::int64_t bucket = frame_.bucket(frame_.deck.zero.allgather_bucket_size);
  for (const Range& cut : cut_shard(p.storage.optimizer_whole ? 0 : p.shard, p.owners.size, bucket)) {
    const Range all{cut.begin, (p.owners.size - 1) * p.shard + cut.end}, mine{p.owned.begin + cut.begin, p.owned.begin + cut.end};
    emit({.name = "gather matrices of " + frame_.unit_at(unit).name,
          .op = Collective{CollectiveKind::all_gather, p.owners.axes, cut.size(), p.shard, DType::bf16},
          .lane = Lane::gather,
          .uses = {matrices_of(unit, all, Access::write), matrices_of(unit, mine, Access::read)},
          .bytes_moved = static_cast<double>(matrix_bytes(cut.size())) * (p.owners.size - 1)});
  }
  const Group parts = parts_of_matrices(unit);
  if (parts.size == 1) return;
  const Use mine = matrices_of(unit, {0, frame_.unit_at(unit).elements}, Access::read);
  const std::int64_t count = frame_.unit_at(unit).elements;
  emit({.name = "gather parts of matrices of " + frame_.unit_at(unit).name,
        .op = Collective{CollectiveKind::all_gather, parts.axes, count, count, DType::bf16},
        .lane = Lane::gather,
        .uses = {buffers_.whole(mine.buffer, Access::write), mine},
        .bytes_moved = static_cast<double>(mine.bytes) * (parts.size - 1)});
}

std::vector<SectionBuilder::WholeMatrices> SectionBuilder::whole_matrices(const std::vector<int>& units) const {
  // Those that the same ranks share are balanced together.
  std::map<Axes, std::vector<double>> costs;
  for (const int u : units)
    for (const Slot& slot : frame_.unit_at(u).slots) {
      const Shape& shape = frame_.layout.table[index(slot.parameter)].shape;
      costs[sharing_matrices(u).axes].push_back(kernels::newton_schulz_flops(shape.dims[0], shape.dims[1]));
    }
  std::map<Axes, std::vector<int>> owners;
  std::map<Axes, std::size_t> next;
  std::vector<WholeMatrices> all;
  for (const int u : units) {
    WholeMatrices& whole = all.emplace_back(WholeMatrices{.unit = u, .parts = parts_of_matrices(u), .sharing = sharing_matrices(u)});
    const Group& sharing = whole.sharing;
    std::vector<int>& owner = owners[sharing.axes];
    if (owner.empty()) owner = longest_first(costs[sharing.axes], sharing.size);
    std::vector<std::int64_t> used(index(sharing.size));
    for (const Slot& slot : frame_.unit_at(u).slots) {
      const int of = owner[next[sharing.axes]++];
      whole.places.push_back({of, used[index(of)]});
      used[index(of)] += round_up(frame_.layout.table[index(slot.parameter)].shape.elements(), grain);
    }
    whole.block = *std::ranges::max_element(used);
  }
  return all;
}

Use SectionBuilder::results_of(const WholeMatrices& whole, int first, int count, Access access) {
  const std::string name = "orthogonal." + frame_.unit_at(whole.unit).name;
  const std::int64_t block = matrix_bytes(whole.block);
  const int buffer = buffers_.declare(name, Category::workspace, frame_.comm_tier, block * whole.sharing.size);
  return {buffer, block * first, block * count, access};
}

Orthogonalize::Matrix SectionBuilder::matrix_of(const WholeMatrices& whole, std::size_t slot) const {
  const Slot& s = frame_.unit_at(whole.unit).slots[slot];
  const Parameter& p = frame_.layout.table[index(s.parameter)];
  const bool cut = s.elements < p.shape.elements();
  TESSERA_REQUIRE(!cut || (p.tp_dim >= 0 && s.box.count[index(p.tp_dim)] * whole.parts.size == p.shape.dims[index(p.tp_dim)]),
                  "{} of {} is not a part of {}", s.box.str(), p.name, whole.parts.size);
  return {.from = s.offset,
          .to = whole.sharing.size == 1 ? s.offset : whole.places[slot].offset,
          .rows = p.shape.dims[0],
          .columns = p.shape.dims[1],
          .scale = frame_.optimizer_of(whole.unit).update.orthogonal->scale(p.shape.dims[0], p.shape.dims[1]),
          .parts = cut ? whole.parts.size : 1,
          .parts_of_columns = cut && p.tp_dim == 1};
}

void SectionBuilder::emit_orthogonal(const WholeMatrices& whole) {
  const Unit& unit = frame_.unit_at(whole.unit);
  const bool alone = whole.sharing.size == 1;
  Orthogonalize op{.steps = frame_.optimizer_of(whole.unit).update.orthogonal->steps, .part_step = unit.elements, .matrices = {}};
  double flops = 0;
  std::int64_t bytes = 0;  // of workspace: the same on all ranks
  for (std::size_t s = 0; s < unit.slots.size(); ++s) {
    const Orthogonalize::Matrix m = matrix_of(whole, s);
    const kernels::NewtonSchulz shape{.rows = m.rows, .columns = m.columns, .parts = m.parts, .parts_of_columns = m.parts_of_columns};
    bytes = std::max(bytes, static_cast<std::int64_t>(kernels::newton_schulz_workspace_bytes(shape, frame_.shape.backend)));
    if (whole.places[s].owner != whole.sharing.rank) continue;
    op.matrices.push_back(m);
    flops += kernels::newton_schulz_flops(m.rows, m.columns);
  }
  const Use workspace = buffers_.workspace("workspace.matrices", frame_.local_tier, bytes);
  const int matrices = matrices_of(whole.unit, {}, Access::read).buffer;
  emit({.name = "orthogonalize " + unit.name,
        .op = std::move(op),
        .uses = {buffers_.whole(matrices, alone ? Access::add : Access::read),
                 alone ? buffers_.absent() : results_of(whole, whole.sharing.rank, 1, Access::write), workspace},
        .flops = flops});
}

void SectionBuilder::emit_results(const WholeMatrices& whole) {
  const Group& sharing = whole.sharing;
  if (sharing.size == 1) return;
  const Unit& unit = frame_.unit_at(whole.unit);
  const Range& state = frame_.plan(whole.unit).state;
  emit({.name = "gather orthogonal matrices of " + unit.name,
        .op = Collective{CollectiveKind::all_gather, sharing.axes, whole.block, whole.block, DType::bf16},
        .lane = Lane::gather,
        .uses = {results_of(whole, 0, sharing.size, Access::write), results_of(whole, sharing.rank, 1, Access::read)},
        .bytes_moved = static_cast<double>(matrix_bytes(whole.block)) * (sharing.size - 1)});
  CopyRuns op{.dtype = DType::bf16, .runs = {}};
  for (const Piece& piece : pieces_in(unit, state.begin, state.end)) {
    const Slot& slot = unit.slots[index(piece.slot)];
    const WholeMatrices::Place& place = whole.places[index(piece.slot)];
    const int part = slot.elements < frame_.layout.table[index(slot.parameter)].shape.elements() ? whole.parts.rank : 0;
    op.runs.push_back({.to = piece.unit_offset - state.begin,
                       .from = place.owner * whole.block + place.offset + part * slot.elements + piece.slot_offset,
                       .elements = piece.elements});
  }
  emit({.name = "take orthogonal matrices of " + unit.name,
        .op = std::move(op),
        .uses = {matrices_of(whole.unit, state, Access::write), results_of(whole, 0, sharing.size, Access::read)}});
}

void SectionBuilder::emit_matrices_between_tiers(int unit, const Range& elements, const Use& below, bool up) {
  const Use here = matrices_of(unit, elements, up ? Access::write : Access::read);
  const Use there{below.buffer, below.offset, below.bytes, up ? Access::read : Access::write};
  emit({.name = fmt::format("{} matrices of {}", up ? "upload" : "download", frame_.unit_at(unit).name),
        .op = Copy{},
        .lane = up ? Lane::upload : Lane::download,
        .uses = {up ? here : there, up ? there : here},
        .bytes_moved = static_cast<double>(below.bytes)});
}

}  // namespace tessera
