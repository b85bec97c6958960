#include <fmt/format.h>

#include "base/types.hpp"
#include "model/table/parameters.hpp"
#include "model/towers/towers.hpp"

namespace tessera {
namespace {
constexpr const TowerRow* rows[] = {&reference_tower};
}  // namespace

std::span<const TowerRow* const> tower_rows() { return rows; }

Deck without_towers(Deck deck) {
  for (const TowerRow* row : rows) row->leave_out(deck);
  return deck;
}

std::string describe_towers(const Deck& deck) {
  std::string text;
  for (const TowerRow* row : rows) {
    if (!row->wanted(deck)) continue;
    const std::string what = row->shares_tensors(deck)
                                 ? "reads the model's frozen tensors, and has none of its own"
                                 : fmt::format("{} parameters, frozen",
                                               human_count(static_cast<double>(parameter_count(parameter_table(row->deck(deck).model)))));
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", row->name, what);
  }
  return text;
}

}  // namespace tessera
