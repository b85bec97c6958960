#include "optimizer/state.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"
#include "deck/schema/update_keys.hpp"
#include "kernels/step/step.hpp"
#include "model/table/layout.hpp"
#include "optimizer/groups.hpp"
#include "optimizer/texts/table.hpp"

namespace tessera {
namespace {

UpdateRecord update_of(const UpdateKeys& keys) {
  const bool halves = keys.moments == DType::bf16;
  UpdateText text({.momentum = keys.momentum > 0,
                   .nesterov = keys.nesterov,
                   .warms_up = keys.warms_up,
                   .moments = halves ? kernels::StateType::bf16 : kernels::StateType::f32,
                   .stochastic = halves && keys.moments_rounding == MomentsRounding::stochastic,
                   .orthogonal = {.steps = keys.newton_schulz, .matches_adamw = keys.muon_scale == MuonScale::match_rms_adamw}});
  optimizer_named(keys.type).text(text);
  return text.record();
}

UpdateKeys of_deck(const OptimizerKeys& keys) { return keys_alone(keys, keys.type); }

UpdateKeys of_group(const OptimizerGroup& group) { return keys_alone(*group.update, group.update->type); }

/// A list of optimizers that grows as keys are asked for.
struct Optimizers {
  std::vector<ChosenOptimizer> all;

  const std::string& named(const UpdateKeys& keys) {
    for (const ChosenOptimizer& known : all)
      if (known.keys == keys) return known.name;
    const auto before = std::ranges::count_if(all, [&](const ChosenOptimizer& known) { return known.keys.type == keys.type; });
    std::string name = all.empty() ? "" : before == 0 ? keys.type : fmt::format("{}-{}", keys.type, before + 1);
    all.push_back({std::move(name), keys, update_of(keys)});
    return all.back().name;
  }
  /// Of these keys, or of the row that updates what theirs does not take.
  UpdateKeys that_takes(const UpdateKeys& keys, bool taken) {
    if (taken) return keys;
    return keys_alone(keys, optimizer_named(keys.type).rest);
  }
  void add(const UpdateKeys& keys) {
    named(keys);
    if (optimizer_named(keys.type).takes) named(that_takes(keys, false));
  }
};

/// Tensors [first, last) of the table lie beside each other. Whether an optimizer takes them all.
bool takes(const Optimizer& row, const std::vector<Parameter>& table, std::size_t first, std::size_t last, int tensor_ranks) {
  std::int64_t before = 0;
  for (std::size_t i = first; i < last && row.takes; ++i) {
    const std::int64_t elements = table[i].shape.elements();
    if (!row.takes({.elements = elements,
                    .dims = table[i].shape.dims.size(),
                    .begins_block = before % shard_block == 0,
                    .hidden_matrix = is_hidden_matrix(table[i])}))
      return false;
    before += elements / (table[i].tp_dim >= 0 ? tensor_ranks : 1);
  }
  return true;
}

}  // namespace

std::vector<ChosenOptimizer> chosen_optimizers(const OptimizerKeys& keys) {
  Optimizers optimizers;
  optimizers.add(of_deck(keys));
  for (const OptimizerGroup& group : keys.groups)
    if (group.update) optimizers.add(of_group(group));
  return std::move(optimizers.all);
}

bool sends_signs(const OptimizerKeys& keys) { return optimizer_named(keys.type).sends_signs && !keys.warms_up; }

void assign_optimizers(const OptimizerKeys& keys, std::vector<Parameter>& table, int tensor_ranks) {
  Optimizers optimizers{chosen_optimizers(keys)};
  if (std::ssize(optimizers.all) > kernels::most_optimizers)
    fail(ExitCode::usage,
         "optimizer.groups: {} optimizers, but a run has {} at most. Groups share one if their type and its keys are equal.",
         optimizers.all.size(), kernels::most_optimizers);
  if (optimizers.all.size() == 1) return;
  const UpdateKeys own = of_deck(keys);
  const auto asked = [&](const Parameter& p) {
    const OptimizerGroup* group = group_of(keys, p);
    return group && group->update ? of_group(*group) : own;
  };
  for (std::size_t first = 0, last = 0; first < table.size(); first = last) {
    for (last = first + 1; last < table.size() && table[last].joined;) ++last;
    if (!table[first].trained || table[first].frozen) continue;
    const UpdateKeys of_first = asked(table[first]);
    for (std::size_t i = first + 1; i < last; ++i)
      if (asked(table[i]) != of_first)
        fail(ExitCode::usage,
             "optimizer.groups: {} and {} are parts of one product, but groups give them two optimizers. Give both the same.",
             table[i - 1].name, table[i].name);
    const bool taken = takes(optimizer_named(of_first.type), table, first, last, tensor_ranks);
    for (std::size_t i = first; i < last; ++i) table[i].optimizer = optimizers.named(optimizers.that_takes(of_first, taken));
  }
}

std::vector<std::string_view> state_groups(const OptimizerKeys& keys) {
  std::vector<std::string_view> groups = {master_group};
  for (const ChosenOptimizer& optimizer : chosen_optimizers(keys))
    for (const StateRow& row : optimizer.update.state)
      if (std::ranges::find(groups, row.group) == groups.end()) groups.push_back(row.group);
  return groups;
}

std::int64_t state_bytes(const OptimizerKeys& keys, std::string_view name) {
  std::int64_t bytes = 0;
  for (const ChosenOptimizer& optimizer : chosen_optimizers(keys))
    for (const StateRow& row : optimizer.update.state)
      if (optimizer.name == name && row.of == kernels::Extent::element) bytes += row.bytes(1);
  return bytes;
}

}  // namespace tessera
