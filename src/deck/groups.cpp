#include "deck/groups.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tessera {
namespace {

/// What is wrong with a table, after its number: `has learning_rat, which ...`.
std::string read_group(const toml::table& table, OptimizerGroup& group) {
  for (const auto& [name, node] : table) {
    if (name.str() == "tensors") {
      const toml::array* names = node.as_array();
      for (std::size_t i = 0; names && i < names->size(); ++i) {
        const auto* text = names->get(i)->as_string();
        if (!text) return "has tensors that are no texts";
        group.tensors.push_back(text->get());
      }
      if (!names) return "has tensors that are no list; write tensors = [\"head.*\"]";
    } else if (name.str() == "learning_rate" || name.str() == "weight_decay") {
      const auto number = node.value<double>();
      if (!number || !node.is_number() || !(*number >= 0 && *number <= 1000))
        return fmt::format("has a {} that is no number from 0 to 1000", name.str());
      (name.str() == "learning_rate" ? group.learning_rate : group.weight_decay) = *number;
    } else {
      return fmt::format("has {}, which is none of tensors, learning_rate and weight_decay", shortened(std::string(name.str())));
    }
  }
  if (group.tensors.empty()) return "has no tensors";
  if (!group.learning_rate && !group.weight_decay) return "has neither learning_rate nor weight_decay";
  return "";
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
    if (group.learning_rate) text += ", learning_rate = " + shortest(*group.learning_rate);
    if (group.weight_decay) text += ", weight_decay = " + shortest(*group.weight_decay);
    tables.push_back("{ " + text + " }");
  }
  return fmt::format("[{}]", fmt::join(tables, ", "));
}

}  // namespace tessera
