#include "train/engine/same_state.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/check.hpp"
#include "model/towers/towers.hpp"
#include "optimizer/state.hpp"

namespace tessera {
namespace {

/// Names of what each optimizer of a deck keeps of a tensor that it updates, by tensor.
std::map<std::string, std::vector<std::string_view>> states_by_tensor(const OptimizerKeys& keys, std::vector<Parameter> table) {
  const std::vector<ChosenOptimizer> optimizers = chosen_optimizers(keys);
  assign_optimizers(keys, table);
  std::map<std::string, std::vector<std::string_view>> states;
  for (const Parameter& p : table)
    for (const StateRow& row : std::ranges::find(optimizers, p.optimizer, &ChosenOptimizer::name)->update.state)
      if (p.trained && !p.frozen) states[p.name].push_back(row.group);
  return states;
}

/// Where groups of a deck name optimizers, a checkpoint has zeros where a tensor's own optimizer keeps nothing.
void require_same_groups(const Deck& deck, const std::vector<Parameter>& table, const io::SavedState& from) {
  const Deck there = parse_stored_deck(from.meta().deck, from.name() + ":deck").deck;
  if (deck.optimizer.groups == there.optimizer.groups) return;
  const auto mine = states_by_tensor(deck.optimizer, table), saved = states_by_tensor(there.optimizer, table);
  for (const auto& [tensor, states] : mine)
    if (const auto found = saved.find(tensor); found == saved.end() || found->second != states)
      fail(ExitCode::checkpoint,
           "{}: {} was updated by an optimizer that keeps {}, but this deck's keeps {}. Set the optimizer.groups that saved it (`tessera "
           "inspect` shows its deck). Or start a run from its weights: `tessera consolidate {} FOLDER`, and run.init = \"FOLDER\".",
           from.name(), tensor, found == saved.end() ? "nothing" : fmt::format("{}", fmt::join(found->second, ", ")),
           fmt::join(states, ", "), from.name());
}

bool is_own(std::string_view group) { return group == sign_error_group || group == mean_sign_error_group; }

/// A run may begin or end to have them.
bool is_of_tower(std::string_view group) {
  return std::ranges::any_of(tower_rows(), [&](const TowerRow* row) { return row->name == group; });
}
bool has_prefix_of_tower(std::string_view tensor) { return is_of_tower(tensor.substr(0, tensor.find('.'))); }

/// What one optimizer keeps means nothing to another.
void require_same_optimizer(const OptimizerKeys& keys, const io::SavedState& from) {
  const std::vector<std::string_view> groups = state_groups(keys);
  std::vector<std::string> there = from.layout().groups;
  std::erase_if(there, [](const std::string& group) { return is_own(group) || is_of_tower(group); });
  if (has_weights_alone(from) || std::ranges::equal(there, groups)) return;
  fail(ExitCode::checkpoint,
       "{} holds the state of another optimizer: {}; optimizer.type = \"{}\" keeps {}. Set the optimizer that saved it (`tessera inspect` "
       "shows its deck). Or start a run from its weights: `tessera consolidate {} FOLDER`, and run.init = \"FOLDER\".",
       from.name(), fmt::join(there, ", "), keys.type, fmt::join(groups, ", "), from.name());
}

}  // namespace

bool has_weights_alone(const io::SavedState& from) { return from.layout().groups == std::vector<std::string>{std::string(master_group)}; }

void require_same_model(const std::vector<Parameter>& table, const io::SavedState& from) {
  for (const Parameter& p : table) {
    if (!p.tower.empty()) continue;
    const io::CheckpointTensor* found = from.find(p.name);
    if (!found && p.adapter && has_weights_alone(from)) continue;
    if (!found)
      fail(ExitCode::checkpoint, "{} holds another model: it has no tensor {} ({}). Check the deck's [model].", from.name(), p.name,
           p.shape.str());
    if (!(found->shape == p.shape))
      fail(ExitCode::checkpoint, "{} holds another model: tensor {} is {} there and {} in this deck. Check the deck's [model].",
           from.name(), p.name, found->shape.str(), p.shape.str());
  }
  if (from.layout().tensors.size() != table.size())
    for (const auto& t : from.layout().tensors)
      if (!has_prefix_of_tower(t.name) && std::none_of(table.begin(), table.end(), [&](const Parameter& p) { return p.name == t.name; }))
        fail(ExitCode::checkpoint, "{} holds another model: its tensor {} ({}) is not in this deck's model. Check the deck's [model].",
             from.name(), t.name, t.shape.str());
}

void require_same_state(const Deck& deck, const std::vector<Parameter>& table, const io::SavedState& from) {
  require_same_optimizer(deck.optimizer, from);
  if (!has_weights_alone(from)) require_same_groups(deck, table, from);
}

}  // namespace tessera
