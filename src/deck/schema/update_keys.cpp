#include "deck/schema/update_keys.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "deck/schema/value.hpp"
#include "optimizer/texts/table.hpp"

namespace tessera {

std::vector<const Key*> keys_of_update(std::string_view type) {
  const std::vector<std::string_view>& read = optimizer_named(type).keys;
  std::vector<const Key*> keys;
  for (const Key& key : deck_keys())
    if (key.section() == "optimizer" && std::ranges::find(read, key.leaf()) != read.end()) keys.push_back(&key);
  return keys;
}

void set_update_defaults(Deck& deck, const std::function<bool(const Key&)>& keeps) {
  for (const auto& [leaf, value] : optimizer_named(deck.optimizer.type).defaults) {
    const Key& key = *find_key(fmt::format("optimizer.{}", leaf));
    bool is_auto = false;
    if (!keeps(key)) assign(key, key.type == KeyType::boolean ? Literal{value != 0, ""} : Literal{value, ""}, deck, is_auto);
  }
}

UpdateKeys default_update(std::string_view type) {
  Deck deck;
  deck.optimizer.type = type;
  set_update_defaults(deck);
  return deck.optimizer;
}

Deck deck_of_update(const UpdateKeys& keys) {
  Deck deck;
  static_cast<UpdateKeys&>(deck.optimizer) = keys;
  return deck;
}

UpdateKeys keys_alone(const UpdateKeys& keys, std::string_view type) {
  const Deck from = deck_of_update(keys);
  Deck to = deck_of_update({.type = std::string(type), .warms_up = keys.warms_up});
  bool is_auto = false;
  for (const Key* key : keys_of_update(type)) assign(*key, read_value(*key, from), to, is_auto);
  return to.optimizer;
}

std::vector<std::pair<std::string_view, std::string>> given_keys(const OptimizerGroup& group) {
  std::vector<std::pair<std::string_view, std::string>> given;
  if (!group.update) return given;
  const Deck deck = deck_of_update(*group.update);
  for (const std::string_view leaf : group.given) given.emplace_back(leaf, value_text(*find_key(fmt::format("optimizer.{}", leaf)), deck));
  return given;
}

}  // namespace tessera
