#include "deck/groups.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "optimizer/texts/table.hpp"

namespace tessera {
namespace {

struct NumberKey {
  std::string_view name;
  std::optional<double> OptimizerGroup::*field;
  double least, most;
  bool of_type;  ///< goes with a type that reads it
};
constexpr NumberKey number_keys[] = {
    {"learning_rate", &OptimizerGroup::learning_rate, 0, 1000, false},
    {"weight_decay", &OptimizerGroup::weight_decay, 0, 1000, false},
    {"beta1", &OptimizerGroup::beta1, 0, 1, true},
    {"beta2", &OptimizerGroup::beta2, 0, 1, true},
    {"eps", &OptimizerGroup::eps, 0, 1, true},
    {"momentum", &OptimizerGroup::momentum, 0, 1, true},
    {"min_trust_ratio", &OptimizerGroup::min_trust_ratio, 0, 1e6, true},
    {"max_trust_ratio", &OptimizerGroup::max_trust_ratio, 0, 1e6, true},
    {"decay_rate", &OptimizerGroup::decay_rate, 0, 10, true},
    {"update_clipping", &OptimizerGroup::update_clipping, 0, 1e6, true},
};

std::string read_tensors(const toml::node& node, OptimizerGroup& group) {
  const toml::array* names = node.as_array();
  for (std::size_t i = 0; names && i < names->size(); ++i) {
    const auto* text = names->get(i)->as_string();
    if (!text) return "has tensors that are no texts";
    group.tensors.push_back(text->get());
  }
  return names ? "" : "has tensors that are no list; write tensors = [\"head.*\"]";
}

std::string read_type(const toml::node& node, OptimizerGroup& group) {
  group.type = node.value<std::string>();
  const std::vector<std::string_view> names = optimizer_names();
  if (group.type && std::ranges::find(names, *group.type) != names.end()) return "";
  return fmt::format("has a type that is none of \"{}\"", fmt::join(names, "\", \""));
}

std::string read_number(const toml::node& node, const NumberKey& key, OptimizerGroup& group) {
  const auto number = node.value<double>();
  const bool below = key.of_type && key.most == 1 && key.name != "eps";  // decays are less than 1
  if (!number || !node.is_number() || !(*number >= key.least && (below ? *number < key.most : *number <= key.most)))
    return fmt::format("has a {} that is no number from {} to {}", key.name, key.least, key.most);
  group.*key.field = *number;
  return "";
}

std::string fault_of_type(const OptimizerGroup& group) {
  std::vector<std::string_view> given;
  for (const NumberKey& key : number_keys)
    if (key.of_type && group.*key.field) given.push_back(key.name);
  if (group.nesterov) given.push_back("nesterov");
  if (given.empty()) return "";
  if (!group.type) return fmt::format("has {} without a type; those of optimizer.type are in [optimizer]", given.front());
  const Optimizer& row = optimizer_named(*group.type);
  for (const std::string_view name : given)
    if (std::ranges::find(row.keys, name) == row.keys.end()) return fmt::format("has {}, which \"{}\" does not read", name, row.name);
  const auto its_own = std::ranges::find(row.defaults, "momentum", &std::pair<std::string_view, double>::first);
  if (group.nesterov.value_or(false) && group.momentum.value_or(its_own == row.defaults.end() ? 0 : its_own->second) == 0)
    return "has nesterov without a momentum; give it one, for example 0.9";
  const OptimizerKeys defaults;
  if (group.min_trust_ratio.value_or(defaults.min_trust_ratio) > group.max_trust_ratio.value_or(defaults.max_trust_ratio))
    return "has a min_trust_ratio above its max_trust_ratio";
  return "";
}

/// ", learning_rate, weight_decay, ... and max_trust_ratio"
std::string other_names() {
  std::string text;
  for (const NumberKey& key : number_keys) text += fmt::format("{}{}", &key == std::end(number_keys) - 1 ? " and " : ", ", key.name);
  return text;
}

/// What is wrong with a table, after its number: `has learning_rat, which ...`.
std::string read_group(const toml::table& table, OptimizerGroup& group) {
  for (const auto& [name, node] : table) {
    const auto number = std::ranges::find(number_keys, name.str(), &NumberKey::name);
    std::string fault;
    if (name.str() == "tensors")
      fault = read_tensors(node, group);
    else if (name.str() == "type")
      fault = read_type(node, group);
    else if (number != std::end(number_keys))
      fault = read_number(node, *number, group);
    else if (name.str() == "nesterov" && node.is_boolean())
      group.nesterov = node.value<bool>();
    else if (name.str() == "nesterov")
      fault = "has a nesterov that is neither true nor false";
    else
      fault = fmt::format("has {}, which is none of tensors, type, nesterov{}", shortened(std::string(name.str())), other_names());
    if (!fault.empty()) return fault;
  }
  if (group.tensors.empty()) return "has no tensors";
  if (!group.learning_rate && !group.weight_decay && !group.type) return "has neither type, learning_rate nor weight_decay";
  return fault_of_type(group);
}

}  // namespace

Literal read_groups(const toml::array& tables) {
  std::vector<OptimizerGroup> groups;
  for (const toml::node& node : tables) {
    groups.emplace_back();
    if (const std::string fault = read_group(*node.as_table(), groups.back()); !fault.empty())
      return {std::monostate{}, fmt::format("a list whose group {} {}", groups.size(), fault)};
  }
  return {groups, ""};
}

std::string groups_text(const std::vector<OptimizerGroup>& groups) {
  std::vector<std::string> tables;
  for (const OptimizerGroup& group : groups) {
    std::vector<std::string> names;
    for (const std::string& name : group.tensors) names.push_back(toml_string(name));
    std::string text = fmt::format("tensors = [{}]", fmt::join(names, ", "));
    if (group.type) text += ", type = " + toml_string(*group.type);
    for (const NumberKey& key : number_keys)
      if (group.*key.field) text += fmt::format(", {} = {}", key.name, shortest(*(group.*key.field)));
    if (group.nesterov) text += fmt::format(", nesterov = {}", *group.nesterov);
    tables.push_back("{ " + text + " }");
  }
  return fmt::format("[{}]", fmt::join(tables, ", "));
}

}  // namespace tessera
