#include "optimizer/state.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"
#include "kernels/step/step.hpp"
#include "optimizer/groups.hpp"
#include "optimizer/texts/table.hpp"

namespace tessera {
namespace {

UpdateRecord update_of(const OptimizerKeys& keys) {
  UpdateText text({.momentum = keys.momentum > 0, .nesterov = keys.nesterov});
  optimizer_named(keys.type).text(text);
  return text.record();
}

/// Keys that say the same of an update are equal.
OptimizerKeys alone(const OptimizerKeys& keys) {
  OptimizerKeys own{.type = keys.type};
  for (const std::string_view leaf : optimizer_named(keys.type).keys) {
    if (leaf == "beta1") own.beta1 = keys.beta1;
    if (leaf == "beta2") own.beta2 = keys.beta2;
    if (leaf == "eps") own.eps = keys.eps;
    if (leaf == "momentum") own.momentum = keys.momentum;
    if (leaf == "nesterov") own.nesterov = keys.nesterov;
  }
  return own;
}

/// What a group does not say of its optimizer has the defaults of that one.
OptimizerKeys keys_of(const OptimizerGroup& group) {
  OptimizerKeys keys{.type = *group.type};
  for (const auto& [leaf, value] : optimizer_named(keys.type).defaults) {
    TESSERA_REQUIRE(leaf == "beta2", "a default of {}", leaf);
    keys.beta2 = value;
  }
  if (group.beta1) keys.beta1 = *group.beta1;
  if (group.beta2) keys.beta2 = *group.beta2;
  if (group.eps) keys.eps = *group.eps;
  if (group.momentum) keys.momentum = *group.momentum;
  if (group.nesterov) keys.nesterov = *group.nesterov;
  return alone(keys);
}

/// A list of optimizers that grows as keys are asked for.
struct Optimizers {
  std::vector<ChosenOptimizer> all;

  const std::string& named(const OptimizerKeys& keys) {
    for (const ChosenOptimizer& known : all)
      if (known.keys == keys) return known.name;
    const auto before = std::ranges::count_if(all, [&](const ChosenOptimizer& known) { return known.keys.type == keys.type; });
    std::string name = all.empty() ? "" : before == 0 ? keys.type : fmt::format("{}-{}", keys.type, before + 1);
    all.push_back({std::move(name), keys, update_of(keys)});
    return all.back().name;
  }
};

}  // namespace

std::vector<ChosenOptimizer> chosen_optimizers(const OptimizerKeys& keys) {
  Optimizers optimizers;
  optimizers.named(alone(keys));
  for (const OptimizerGroup& group : keys.groups)
    if (group.type) optimizers.named(keys_of(group));
  return std::move(optimizers.all);
}

void assign_optimizers(const OptimizerKeys& keys, std::vector<Parameter>& table) {
  Optimizers optimizers{chosen_optimizers(keys)};
  if (std::ssize(optimizers.all) > kernels::most_optimizers)
    fail(ExitCode::usage, "optimizer.groups: {} optimizers; a run has {} at most. Groups share one where their type and its keys agree.",
         optimizers.all.size(), kernels::most_optimizers);
  if (optimizers.all.size() == 1) return;
  for (Parameter& p : table)
    if (const OptimizerGroup* group = p.trained && !p.frozen ? group_of(keys, p.name) : nullptr; group && group->type)
      p.optimizer = optimizers.named(keys_of(*group));
  for (std::size_t i = 1; i < table.size(); ++i)
    if (table[i].joined && table[i].optimizer != table[i - 1].optimizer)
      fail(ExitCode::usage,
           "optimizer.groups: {} and {} lie beside each other, as parts of one product, and groups give them two optimizers. Give both the "
           "same.",
           table[i - 1].name, table[i].name);
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
      if (optimizer.name == name) bytes += row.bytes(1);
  return bytes;
}

}  // namespace tessera
