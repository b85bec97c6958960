#include "deck/import/deepspeed_keys.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"
#include "deck/import/import.hpp"
#include "deck/schema.hpp"

namespace tessera {
namespace {

std::vector<DeepSpeedKey> whole_table() {
  std::vector<DeepSpeedKey> all = deepspeed_step_keys();
  const std::vector<DeepSpeedKey> others = deepspeed_other_keys();
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

std::string becomes(const DeepSpeedKey& key) {
  switch (key.outcome) {
    case DeepSpeedOutcome::mapped: {
      std::string text = fmt::format("`{}`", key.ours);
      if (!key.says.empty()) text += fmt::format(": {}", key.says);
      const bool same_auto = find_key(key.ours)->automatic != Auto::no && !key.together;
      if (same_auto) text += "; `\"auto\"` stays auto";
      if (!key.automatic.empty()) text += fmt::format("; `\"auto\"`: {} ({})", key.automatic, key.filled_by);
      return text;
    }
    case DeepSpeedOutcome::unneeded:
      return fmt::format("not needed: {}", key.says);
    case DeepSpeedOutcome::refused:
      if (key.type == DeepSpeedType::section && !key.off.empty()) return fmt::format("refused where `{}` is true: {}", key.off, key.says);
      return fmt::format("refused{}: {}", key.off.empty() ? "" : fmt::format(", but for `{}`", key.off), key.says);
    case DeepSpeedOutcome::part:
      break;  // in its section's row
  }
  return {};
}

/// Its name, and those of the keys that it decides for.
std::string names_of(const DeepSpeedKey& row) {
  std::string names = fmt::format("`{}`", row.name);
  const char* before = ": ";
  for (const DeepSpeedKey& key : deepspeed_keys()) {
    if (key.outcome != DeepSpeedOutcome::part || &deciding_row(key) != &row) continue;
    names += fmt::format("{}`{}`", before, key.leaf());
    before = ", ";
  }
  return names;
}

}  // namespace

std::span<const DeepSpeedKey> deepspeed_keys() {
  static const std::vector<DeepSpeedKey> table = whole_table();
  return table;
}

const DeepSpeedKey* find_deepspeed_key(std::string_view name) {
  const auto table = deepspeed_keys();
  const auto it = std::ranges::find(table, name, &DeepSpeedKey::name);
  return it == table.end() ? nullptr : &*it;
}

bool is_deepspeed_section(std::string_view name) {
  return std::ranges::any_of(deepspeed_keys(), [&](const DeepSpeedKey& key) {
    return key.name.size() > name.size() && key.name.starts_with(name) && key.name[name.size()] == '.';
  });
}

const DeepSpeedKey& deciding_row(const DeepSpeedKey& key) {
  const DeepSpeedKey* row = &key;
  while (row->outcome == DeepSpeedOutcome::part) {
    row = find_deepspeed_key(row->section());
    TESSERA_REQUIRE(row, "{} is a part of no section", key.name);
  }
  return *row;
}

std::string deepspeed_reference() {
  std::string out = "| DeepSpeed's key | here |\n|---|---|\n";
  for (const DeepSpeedKey& key : deepspeed_keys())
    if (key.outcome != DeepSpeedOutcome::part) out += fmt::format("| {} | {} |\n", names_of(key), becomes(key));
  return out;
}

}  // namespace tessera
