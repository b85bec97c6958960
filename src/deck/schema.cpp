// THE table of deck keys, joined of its sections: src/deck/schema_*.cpp.
#include "deck/schema.hpp"

#include <algorithm>

#include "deck/schema_rows.hpp"

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
  for (const auto& of_sections : {run_keys, model_keys, data_keys, optimizer_keys, precision_keys, zero_keys, layout_keys, saves_keys,
                                  guard_keys, machine_keys, preflight_keys, watchdog_keys})
    for (Key& key : of_sections()) keys.push_back(std::move(key));
  add_choices(keys);
  return keys;
}

const std::vector<Key> table = all_keys();

}  // namespace

std::span<const Key> deck_keys() { return table; }

const Key* find_key(std::string_view name) {
  auto it = std::find_if(table.begin(), table.end(), [&](const Key& k) { return k.name == name; });
  return it == table.end() ? nullptr : &*it;
}

bool is_section(std::string_view name) {
  return std::any_of(table.begin(), table.end(),
                     [&](const Key& k) { return k.name.size() > name.size() && k.name.starts_with(name) && k.name[name.size()] == '.'; });
}

}  // namespace tessera
