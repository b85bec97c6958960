#include "schedule/build/gradient_reduction.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "schedule/build/block_reduction.hpp"
#include "schedule/build/offloaded_state.hpp"
#include "topology/communicators/communicator.hpp"

namespace tessera {
namespace {

/// Elements of a unit's gradient as the step keeps it, where reductions leave them.
Use kept_gradient(Emitter& out, int unit, const Range& elements, Access access) {
  const UnitPlan& p = out.frame.plan(unit);
  const std::int64_t bytes = out.frame.gradient_bytes(unit, elements.size());
  if (p.gradient.offloaded && !p.storage.gradients_whole)  // on its way down
    return out.buffers.first_of("passing_gradients." + out.frame.unit_at(unit).name, Category::gradients, out.frame.local_tier, bytes,
                                access);
  return {out.buffers.named("gradients." + out.frame.unit_at(unit).name),
          out.frame.gradient_bytes(unit, elements.begin - p.gradient.held.begin), bytes, access};
}

/// Where this rank's part of the sum over ranks lies, in the type that is reduced.
Use where_reduced(Emitter& out, int unit, int whole, const Range& mine, bool reduces, Access access) {
  const UnitPlan& p = out.frame.plan(unit);
  const bool rounded = p.gradient.kept != p.gradient.sum;
  if (!rounded && (reduces || !p.gradient.offloaded)) return kept_gradient(out, unit, mine, access);
  const std::int64_t bytes = out.frame.sum_bytes(unit, mine.size());
  if (!reduces || p.storage.gradients_whole) return {whole, out.frame.sum_bytes(unit, mine.begin), bytes, access};
  return out.buffers.first_of("reduced_gradients." + out.frame.unit_at(unit).name, Category::gradients, out.frame.local_tier, bytes,
                              access);
}

void emit_all_reduce(Emitter& out, int unit, int whole) {
  const Group& owners = out.frame.plan(unit).owners;
  for (const Range& cut : cut_shard(out.frame.unit_at(unit).elements, 1, out.frame.bucket(out.frame.deck.zero.reduce_bucket_size))) {
    const std::int64_t bytes = out.frame.sum_bytes(unit, cut.size());
    out.emit({.name = "all-reduce " + out.frame.unit_at(unit).name,
              .op = Collective{CollectiveKind::all_reduce, owners.axes, cut.size(), 0, out.frame.plan(unit).gradient.sum},
              .lane = Lane::reduce,
              .uses = {{whole, out.frame.sum_bytes(unit, cut.begin), bytes, Access::add}},
              .bytes_moved = 2.0 * static_cast<double>(bytes) * (owners.size - 1) / owners.size});
  }
}

/// The sums of a step, of this rank's part of a unit.
void emit_all_reduce_over_replicas(Emitter& out, int unit, const Use& sums) {
  const std::int64_t element = out.frame.sum_bytes(unit, 1), n = out.frame.plan(unit).gradient.replicas;
  for (const Range& cut : cut_shard(sums.bytes / element, 1, out.frame.bucket(out.frame.deck.zero.reduce_bucket_size)))
    out.emit({.name = "all-reduce " + out.frame.unit_at(unit).name + " over replicas",
              .op = Collective{CollectiveKind::all_reduce, axes({Axis::replicate}), cut.size(), 0, out.frame.plan(unit).gradient.sum},
              .lane = Lane::reduce,
              .uses = {{sums.buffer, sums.offset + cut.begin * element, cut.size() * element, Access::add}},
              .bytes_moved = 2.0 * static_cast<double>(cut.size() * element) * static_cast<double>(n - 1) / static_cast<double>(n)});
}

/// `to` has room for the elements that this rank owns.
void emit_reduce_scatter(Emitter& out, int unit, int whole, const Use& to, bool accumulate) {
  const UnitPlan& p = out.frame.plan(unit);
  const std::int64_t S = p.shard;
  const auto workspace = [&](std::int64_t count) {
    const ScatteredSum sum{p.owners.size, count, p.gradient.sum, accumulate, out.frame.shape.deterministic};
    const std::int64_t bytes = reduce_scatter_workspace_bytes(out.frame.shape.backend, sum);
    return out.buffers.workspace("workspace.reduce", out.frame.local_tier, bytes);
  };
  for (const Range& cut : cut_shard(S, p.owners.size, out.frame.bucket(out.frame.deck.zero.reduce_bucket_size))) {
    // Reads a piece of every rank's block: the whole buffer from the first piece to the last one.
    const Use read{whole, out.frame.sum_bytes(unit, cut.begin), out.frame.sum_bytes(unit, (p.owners.size - 1) * S + cut.size()),
                   Access::read};
    const Use mine{to.buffer, to.offset + out.frame.sum_bytes(unit, cut.begin), out.frame.sum_bytes(unit, cut.size()), to.access};
    out.emit({.name = "reduce " + out.frame.unit_at(unit).name,
              .op = Collective{CollectiveKind::reduce_scatter, p.owners.axes, cut.size(), S, p.gradient.sum, accumulate},
              .lane = Lane::reduce,
              .uses = {mine, read, workspace(cut.size())},
              .bytes_moved = static_cast<double>(out.frame.sum_bytes(unit, cut.size())) * (p.owners.size - 1)});
  }
}

}  // namespace

int gradient_buffer(Emitter& out, int unit) {
  const std::string& name = out.frame.unit_at(unit).name;
  const GradientPath& path = out.frame.plan(unit).gradient;
  if (path.direct) return out.buffers.named("gradients." + name);
  const bool reduced_itself = path.sum == DType::f32;
  const Tier tier = reduced_itself ? out.frame.comm_tier : out.frame.local_tier;
  return out.buffers.declare("micro_gradients." + name, Category::gradients, tier, 4 * out.frame.unit_at(unit).elements);
}

void emit_gradient_reduction(Emitter& out, const GradientReduction& reduction) {
  const auto [unit, whole, first, last] = reduction;
  const UnitPlan& p = out.frame.plan(unit);
  const Range mine = p.gradient.scattered ? p.owned : p.gradient.held;
  using enum GradientPath::Reduced;
  const bool reduces = p.gradient.reduced == every_micro_batch || (p.gradient.reduced == once && last);
  const bool accumulate = p.gradient.reduced == every_micro_batch && !first && !p.gradient.offloaded;
  Use sums = where_reduced(out, unit, whole, mine, reduces, accumulate ? Access::add : Access::write);
  if (reduces && p.gradient.wire != Wire::plain)
    emit_block_reduce_scatter(out, reduction, sums);
  else if (reduces && p.gradient.scattered)
    emit_reduce_scatter(out, unit, whole, sums, accumulate);
  else if (reduces)
    emit_all_reduce(out, unit, whole);
  if (p.gradient.replicas > 1 && last) emit_all_reduce_over_replicas(out, unit, sums);
  sums.access = Access::read;
  if (p.gradient.kept != p.gradient.sum) {
    const Use kept = kept_gradient(out, unit, mine, Access::write);
    emit_rounding(out, unit, kept, sums, p.gradient.sum);
    sums = {kept.buffer, kept.offset, kept.bytes, Access::read};
  }
  if (p.gradient.offloaded && (last || !p.storage.gradients_whole))
    emit_gradient_down(out, unit, sums, first || p.storage.gradients_whole, last);
}

int sum_buffer(Emitter& out, int unit) {
  const std::string& name = out.frame.unit_at(unit).name;
  const UnitPlan& p = out.frame.plan(unit);
  if (p.storage.gradients_whole && p.gradient.kept == p.gradient.sum) return out.buffers.named("gradients." + name);
  const bool fixed = p.gradient.sum == DType::i64;
  const char* kind = fixed ? "fixed" : "rounded";
  return out.buffers.declare(fmt::format("{}_gradients.{}", kind, name), Category::gradients, out.frame.comm_tier,
                             out.frame.sum_bytes(unit, out.frame.unit_at(unit).elements));
}

void emit_rounding(Emitter& out, int unit, const Use& to, const Use& from, DType type) {
  out.emit({.name = "round " + out.frame.unit_at(unit).name,
            .op = Round{.count = to.bytes / static_cast<std::int64_t>(size_of(DType::bf16)), .from = type},
            .uses = {to, from}});
}

}  // namespace tessera
