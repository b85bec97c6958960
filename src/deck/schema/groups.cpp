#include "deck/schema/groups.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "deck/schema/syntax.hpp"
#include "deck/schema/table_rows.hpp"
#include "deck/schema/update_keys.hpp"
#include "optimizer/texts/table.hpp"

namespace tessera {
namespace {

/// What the groups of AdamW and others have alike.
struct RateKey {
  std::string_view name;
  std::optional<double> OptimizerGroup::*field;
};
constexpr RateKey rate_keys[] = {{"learning_rate", &OptimizerGroup::learning_rate}, {"weight_decay", &OptimizerGroup::weight_decay}};
constexpr double most_rate = 1000;

std::string read_tensors(const toml::node& node, OptimizerGroup& group) {
  const toml::array* names = node.as_array();
  for (std::size_t i = 0; names && i < names->size(); ++i) {
    const auto* text = names->get(i)->as_string();
    if (!text) return "has tensors that are not texts";
    group.tensors.push_back(text->get());
  }
  return names ? "" : "has tensors that are not a list; write tensors = [\"head.*\"]";
}

std::string read_type(const toml::node& node, std::optional<std::string>& type) {
  type = node.value<std::string>();
  const std::vector<std::string_view> names = optimizer_names();
  if (type && std::ranges::find(names, *type) != names.end()) return "";
  return fmt::format("has a type that is not one of \"{}\"", fmt::join(names, "\", \""));
}

std::string read_rate(const toml::node& node, const RateKey& key, OptimizerGroup& group) {
  const auto number = node.value<double>();
  if (!number || !node.is_number() || !(*number >= 0 && *number <= most_rate))
    return fmt::format("has a {} that is not a number from 0 to {}", key.name, most_rate);
  group.*key.field = *number;
  return "";
}

/// The row of a key that some optimizer reads, or nullptr.
const Key* own_key(std::string_view name) {
  const Key* key = find_key(fmt::format("optimizer.{}", name));
  return key && !readers_of(*key).empty() ? key : nullptr;
}

/// "tensors, type, learning_rate, ... and moments_rounding"
std::string all_names() {
  std::vector<std::string_view> names = {"tensors", "type"};
  for (const RateKey& key : rate_keys) names.push_back(key.name);
  for (const Key& key : deck_keys())
    if (!readers_of(key).empty()) names.push_back(key.leaf());
  const std::string_view last = names.back();
  names.pop_back();
  return fmt::format("{} and {}", fmt::join(names, ", "), last);
}

/// Keys of a group's optimizer as a deck gives them, in the order of the schema.
using GivenKeys = std::vector<std::pair<const Key*, Literal>>;

bool gives(const OptimizerGroup& group, std::string_view leaf) { return std::ranges::find(group.given, leaf) != group.given.end(); }

/// What its keys make together.
std::string fault_of_keys(const OptimizerGroup& group) {
  const UpdateKeys& keys = *group.update;
  if (gives(group, "nesterov") && keys.nesterov && keys.momentum == 0)
    return "has nesterov without a momentum; give it one, for example 0.9";
  if (keys.min_trust_ratio > keys.max_trust_ratio) return "has a min_trust_ratio above its max_trust_ratio";
  if (gives(group, "moments_rounding") && (!gives(group, "moments") || keys.moments == DType::f32))
    return "has moments_rounding without moments = \"bf16\"; add moments or leave moments_rounding out";
  if (gives(group, "moments") && keys.type == "sgd" && keys.momentum == 0)
    return "has moments, but sgd without momentum keeps none; leave it out";
  return "";
}

std::string read_update(const std::string& type, const GivenKeys& given, OptimizerGroup& group) {
  const std::vector<const Key*> read = keys_of_update(type);
  Deck deck = deck_of_update(default_update(type));
  for (const auto& [key, literal] : given) {
    if (std::ranges::find(read, key) == read.end()) return fmt::format("has {}, which \"{}\" does not read", key->leaf(), type);
    bool is_auto = false;
    if (const std::string fault = assign(*key, literal, deck, is_auto); !fault.empty())
      return fmt::format("has a {} that is refused: {}", key->leaf(), fault);
    group.given.push_back(key->leaf());
  }
  group.update = deck.optimizer;
  return fault_of_keys(group);
}

/// What is wrong with a table, after its number: `has learning_rat, which ...`.
std::string read_group(const toml::table& table, OptimizerGroup& group) {
  std::optional<std::string> type;
  GivenKeys given;
  for (const auto& [name, node] : table) {
    const auto rate = std::ranges::find(rate_keys, name.str(), &RateKey::name);
    std::string fault;
    if (name.str() == "tensors")
      fault = read_tensors(node, group);
    else if (name.str() == "type")
      fault = read_type(node, type);
    else if (rate != std::end(rate_keys))
      fault = read_rate(node, *rate, group);
    else if (const Key* key = own_key(name.str()))
      given.emplace_back(key, scalar_literal(node));
    else
      fault = fmt::format("has {}, which is not one of {}", shortened(std::string(name.str())), all_names());
    if (!fault.empty()) return fault;
  }
  if (group.tensors.empty()) return "has no tensors";
  if (!group.learning_rate && !group.weight_decay && !type && given.empty())
    return "has none of type, learning_rate and weight_decay; give one";
  std::ranges::sort(given, {}, &GivenKeys::value_type::first);
  if (type) return read_update(*type, given, group);
  return given.empty() ? ""
                       : fmt::format("has {} without a type; keys of optimizer.type belong in [optimizer]", given.front().first->leaf());
}

}  // namespace

Literal read_groups(const toml::array& tables) { return read_rows(tables, "group", read_group); }

std::string groups_text(const std::vector<OptimizerGroup>& groups) {
  std::vector<std::string> tables;
  for (const OptimizerGroup& group : groups) {
    std::vector<std::string> names;
    for (const std::string& name : group.tensors) names.push_back(toml_string(name));
    std::string text = fmt::format("tensors = [{}]", fmt::join(names, ", "));
    if (group.update) text += ", type = " + toml_string(group.update->type);
    for (const RateKey& key : rate_keys)
      if (group.*key.field) text += fmt::format(", {} = {}", key.name, shortest(*(group.*key.field)));
    for (const auto& [key, value] : given_keys(group)) text += fmt::format(", {} = {}", key, value);
    tables.push_back("{ " + text + " }");
  }
  return fmt::format("[{}]", fmt::join(tables, ", "));
}

}  // namespace tessera
