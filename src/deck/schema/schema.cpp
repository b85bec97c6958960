// THE table of deck keys, joined of its sections: src/deck/schema/schema_*.cpp.
#include "deck/schema/schema.hpp"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "deck/schema/schema_rows.hpp"

namespace tessera {
namespace {

/// Puts the words of modes into their rows.
void add_choices(std::vector<Key>& keys) {
  for (Key& key : keys)
    if (const auto* mode = std::get_if<ModeField>(&key.field); mode && key.type == KeyType::text)
      std::ranges::copy_if(mode->words, std::back_inserter(key.choices),
                           [&](std::string_view word) { return word != "auto" || key.automatic == Auto::no; });
}

std::vector<Key> all_keys() {
  using namespace schema;
  std::vector<Key> keys;
  for (const auto& of_sections :
       {run_keys,      model_keys,   data_keys,       optimizer_keys, learning_rate_keys, cycle_keys,     precision_keys, zero_keys,
        zeropp_keys,   offload_keys, activation_keys, mesh_keys,      context_keys,       pipeline_keys,  topology_keys,  checkpoint_keys,
        evaluate_keys, samples_keys, metrics_keys,    guard_keys,     machine_keys,       preflight_keys, watchdog_keys})
    for (Key& key : of_sections()) keys.push_back(std::move(key));
  add_choices(keys);
  return keys;
}

const std::vector<Key> table = all_keys();

std::unordered_map<std::string_view, const Key*> rows_by_name() {
  std::unordered_map<std::string_view, const Key*> found;
  for (const Key& key : table) found.emplace(key.name, &key);
  return found;
}
std::unordered_set<std::string_view> names_of_sections() {
  std::unordered_set<std::string_view> found;
  for (const Key& key : table)
    for (std::size_t dot = key.name.find('.'); dot != key.name.npos; dot = key.name.find('.', dot + 1))
      found.insert(key.name.substr(0, dot));
  return found;
}
// Each line of a deck is looked up: a table that is searched from its begin takes most of a parser's time.
const auto by_name = rows_by_name();
const auto sections = names_of_sections();

}  // namespace

std::span<const Key> deck_keys() { return table; }

const Key* find_key(std::string_view name) {
  const auto it = by_name.find(name);
  return it == by_name.end() ? nullptr : it->second;
}

bool is_section(std::string_view name) { return sections.contains(name); }

}  // namespace tessera
