#include "zero/unit_plan.hpp"

#include "base/check.hpp"

namespace tessera {

namespace {

/// The last units whose elements make up that share of all that the optimizer has state of.
bool in_last_share(const Layout& layout, int unit, double share) {
  double after = 0, all = 0;
  for (int u = 0; u < static_cast<int>(layout.units.size()); ++u) {
    const Unit& other = layout.units[static_cast<std::size_t>(u)];
    if (other.frozen) continue;
    const auto elements = static_cast<double>(other.elements);
    all += elements;
    if (u > unit) after += elements;
  }
  return after < share * all;
}

/// The way of a unit's gradient from where it is computed to where its optimizer reads it. `held`: what of it this rank keeps.
GradientPath gradient_path(const Unit& u, const UnitPlan& plan, const UnitRules& rules, const UnitGroups& groups, bool offloaded,
                           Range held) {
  using enum GradientPath::Reduced;
  const int owners = plan.owners.size;
  const bool whole = plan.storage.gradients_whole, scattered = !plan.storage.optimizer_whole, rounded = rules.gradients == DType::bf16;
  TESSERA_REQUIRE(!rules.own_gradients || (whole && !offloaded), "unit {} keeps its own gradients at stage {}", u.name, rules.stage);
  const Wire wire = rules.quantized_gradients && scattered && !u.persistent && owners > 1 ? Wire::int4_blocks : Wire::plain;
  const DType sum = rules.reproducible ? DType::i64 : wire != Wire::plain ? DType::f32 : rules.gradients;
  return {.sum = sum,
          .kept = rounded ? rules.gradients : sum,
          .direct = whole && sum == DType::f32 && !rounded,
          .scattered = scattered,
          .wire = wire,
          .own = rules.own_gradients && owners > 1,
          .keeps_error = rules.error_feedback && wire != Wire::plain,
          .reduced = owners == 1 || rules.own_gradients ? never
                     : whole                            ? once
                                                        : every_micro_batch,
          .replicas = groups.replicas.size,
          .held = held,
          .offloaded = offloaded};
}

}  // namespace

UnitGroups groups_of_unit(const Mesh& mesh, Axes owners, int world_rank) {
  UnitGroups groups{.owners = group_of(mesh, owners, world_rank)};
  const Axes replicas = axes({Axis::replicate});
  if (!mesh.shares_state) {
    groups.replicas = group_of(mesh, replicas, world_rank);
  } else if (owners & replicas) {
    groups.copies = group_of(mesh, static_cast<Axes>(owners & ~replicas), world_rank);
    groups.sources = group_of(mesh, replicas, world_rank);
  }
  return groups;
}

std::vector<GradientHop> gradient_hops(const UnitPlan& plan, std::int64_t elements) {
  if (plan.gradient.wire == Wire::plain) return {};
  if (plan.copies.size == plan.owners.size || plan.copies.size == 1) return {{plan.owners, plan.gradient.wire, elements}};
  return {{plan.copies, Wire::int8_blocks, elements}, {plan.sources, plan.gradient.wire, plan.parameters.size()}};
}

UnitPlan plan_unit(const Layout& layout, int unit, const UnitRules& rules, const UnitGroups& groups) {
  const Group& owners = groups.owners;
  const Unit& u = layout.units[static_cast<std::size_t>(unit)];
  TESSERA_REQUIRE(owners.size == u.shards, "unit {} for {} ranks and {} owners", u.name, u.shards, owners.size);
  UnitPlan plan{.owners = owners,
                .copies = groups.copies.value_or(owners),
                .sources = {},
                .storage = unit_storage(rules.stage, u, owners.size),
                .shard = layout.shard_elements(unit),
                .owned = owned_range(layout, unit, owners.rank),
                .counted = groups.replicas.rank == 0,
                .state = {},
                .parameters = {},
                .gradient = {}};
  if (!rules.training) plan.storage.parameters_whole = true;
  const bool offloaded = rules.offload_optimizer && u.learns() && in_last_share(layout, unit, rules.offload_ratio);
  // One rank keeps all, but from stage 2 on it does so below.
  if (offloaded && stage_of_unit(rules.stage, u) >= 2) plan.storage.gradients_whole = false;
  plan.parameters_offloaded = rules.offload_parameters && !u.persistent && u.trained;
  const bool of_both_ends = rules.tied && layout.table[static_cast<std::size_t>(u.slots.front().parameter)].part == Part::embedding;
  // The persistent unit's tensors are small, and each value of them counts. One rank reads what several would have gathered.
  if (rules.quantized_weights && rules.training && rules.stage == 3 && u.trained && !u.persistent && !of_both_ends)
    plan.wire = Wire::int8_blocks;
  plan.encoded = plan.wire != Wire::plain && u.learns();
  const bool gathered = plan.parameters_offloaded || plan.wire != Wire::plain;
  if (gathered) plan.storage.parameters_whole = false;
  const auto here = [&](bool whole) { return whole ? Range{0, u.elements} : plan.owned; };
  plan.state = here(plan.storage.optimizer_whole);
  if (plan.storage.parameters_whole) {
    plan.parameters = {0, u.elements};
    if (!plan.storage.optimizer_whole) plan.sources = owners;
  } else {
    const std::int64_t part = u.elements / plan.copies.size;
    plan.parameters = {plan.copies.rank * part, (plan.copies.rank + 1) * part};
    plan.sources = groups.sources.value_or(Group{});
    plan.storage.parameters_whole = plan.copies.size == 1 && !gathered;
  }
  const bool codes = rules.fp8 && rules.fp8->of_tensors() && rules.training && u.tower.empty() && rules.stage == 3 && u.trained;
  if (codes && !plan.storage.parameters_whole && plan.wire == Wire::plain && plan.copies.size > 1)
    plan.coded = coded_parts(layout, unit, plan.copies.size, *rules.fp8);
  if (u.learns()) plan.gradient = gradient_path(u, plan, rules, groups, offloaded, here(plan.storage.gradients_whole));
  return plan;
}

}  // namespace tessera
