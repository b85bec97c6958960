#include "deck/import/foreign_keys.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"
#include "deck/schema/schema.hpp"

namespace tessera {
namespace {

std::string becomes(const ForeignTable& table, const ForeignKey& key) {
  switch (key.outcome) {
    case ForeignOutcome::mapped: {
      std::string text = fmt::format("`{}`", key.ours);
      if (!key.says.empty()) text += fmt::format(": {}", key.reason());
      const bool same_auto = table.knows_auto && find_key(key.ours)->automatic != Auto::no && !key.together;
      if (same_auto) text += "; `\"auto\"` stays auto";
      if (!key.automatic.empty()) text += fmt::format("; `\"auto\"`: {} ({})", key.automatic, key.filled_by);
      return text;
    }
    case ForeignOutcome::unneeded:
      return fmt::format("not needed: {}", key.reason());
    case ForeignOutcome::refused:
      if (key.type == ForeignType::section && !key.off.empty()) return fmt::format("refused if `{}` is true: {}", key.off, key.reason());
      return fmt::format("refused{}: {}", key.off.empty() ? "" : fmt::format(", but for `{}`", key.off), key.reason());
    case ForeignOutcome::part:
      break;  // in its section's row
  }
  return {};
}

/// Its name, and those of the keys that it decides for.
std::string names_of(const ForeignTable& table, const ForeignKey& row) {
  std::string names = fmt::format("`{}`", row.name);
  const char* before = ": ";
  for (const ForeignKey& key : table.rows) {
    if (key.outcome != ForeignOutcome::part || &table.deciding(key) != &row) continue;
    names += fmt::format("{}`{}`", before, key.leaf());
    before = ", ";
  }
  return names;
}

}  // namespace

std::string ForeignKey::reason() const {
  return gone.empty() ? std::string(says) : fmt::format("{} (DeepSpeed itself refuses it since {})", says, gone);
}

std::string ForeignTable::canonical(const std::string& name) const {
  for (const auto& [old, current] : renamed)
    if (name.starts_with(old) && (old.ends_with('_') || name.size() == old.size() || name[old.size()] == '.'))
      return std::string(current) + name.substr(old.size());
  return name;
}

const ForeignKey* ForeignTable::find(std::string_view name) const {
  const auto it = std::ranges::find(rows, name, &ForeignKey::name);
  return it == rows.end() ? nullptr : &*it;
}

bool ForeignTable::is_section(std::string_view name) const {
  return std::ranges::any_of(rows, [&](const ForeignKey& key) {
    return key.name.size() > name.size() && key.name.starts_with(name) && key.name[name.size()] == '.';
  });
}

const ForeignKey& ForeignTable::deciding(const ForeignKey& key) const {
  const ForeignKey* row = &key;
  while (row->outcome == ForeignOutcome::part) {
    row = find(row->section());
    TESSERA_REQUIRE(row, "{} belongs to no section", key.name);
  }
  return *row;
}

std::string ForeignTable::reference() const {
  std::string out = fmt::format("| {}'s key | here |\n|---|---|\n", owner);
  for (const ForeignKey& key : rows)
    if (key.outcome != ForeignOutcome::part) out += fmt::format("| {} | {} |\n", names_of(*this, key), becomes(*this, key));
  return out;
}

const ForeignTable& deepspeed_table() {
  static const ForeignTable table = [] {
    ForeignTable all{.owner = "DeepSpeed",
                     .command = "tessera deck import --keys",
                     .rows = deepspeed_step_keys(),
                     .renamed = {{"bfloat16", "bf16"}},
                     .knows_auto = true};
    const std::vector<ForeignKey> others = deepspeed_other_keys();
    all.rows.insert(all.rows.end(), others.begin(), others.end());
    return all;
  }();
  return table;
}

}  // namespace tessera
