// What goes with optimizer.type: its row of the table says which keys it reads, and which defaults are its own.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "deck/rules/draft.hpp"
#include "deck/schema/update_keys.hpp"
#include "optimizer/texts/table.hpp"

namespace tessera {
namespace {

bool reads(const Optimizer& optimizer, std::string_view leaf) { return std::ranges::find(optimizer.keys, leaf) != optimizer.keys.end(); }

}  // namespace

void resolve_optimizer(Draft& draft) {
  if (!draft.good({"optimizer.type"})) return;
  OptimizerKeys& own = draft.deck.optimizer;
  set_update_defaults(draft.deck, [&](const Key& key) { return draft.entry(key.name).given; });
  // What a group does not say of its optimizer has the defaults of that one, but for what moments lie in.
  for (OptimizerGroup& group : own.groups)
    if (group.update && std::ranges::find(group.given, "moments") == group.given.end())
      group.update->moments = own.moments, group.update->moments_rounding = own.moments_rounding;
}

void check_optimizer(Draft& draft) {
  if (!draft.good({"optimizer.type"})) return;
  const Optimizer& chosen = optimizer_named(draft.deck.optimizer.type);
  for (const Key& key : deck_keys()) {
    const std::vector<std::string_view> readers = readers_of(key);
    if (readers.empty() || reads(chosen, key.leaf()) || !draft.differs(key.name)) continue;
    draft.idle(key.name, "optimizer.type",
               fmt::format("belongs to optimizer.type = \"{}\", and \"{}\" does not read it; leave this key out, or set that type",
                           fmt::join(readers, "\", \""), chosen.name));
  }
}

void check_momentum(Draft& draft) {
  if (draft.good({"optimizer.nesterov", "optimizer.momentum"}) && draft.deck.optimizer.nesterov && draft.deck.optimizer.momentum == 0)
    draft.fault({"optimizer.nesterov", "optimizer.momentum"},
                "optimizer.nesterov needs a momentum, and optimizer.momentum is 0; set it, for example to 0.9, or leave nesterov out");
}

void check_trust_ratio(Draft& draft) {
  const OptimizerKeys& o = draft.deck.optimizer;
  if (draft.good({"optimizer.min_trust_ratio", "optimizer.max_trust_ratio"}) && o.min_trust_ratio > o.max_trust_ratio)
    draft.fault({"optimizer.min_trust_ratio", "optimizer.max_trust_ratio"},
                fmt::format("optimizer.min_trust_ratio = {} is above optimizer.max_trust_ratio = {}", shortest(o.min_trust_ratio),
                            shortest(o.max_trust_ratio)));
}

void check_moments(Draft& draft) {
  if (!draft.good({"optimizer.type", "optimizer.moments", "optimizer.moments_rounding"})) return;
  const OptimizerKeys& o = draft.deck.optimizer;
  if (o.moments == DType::f32 && draft.differs("optimizer.moments_rounding"))
    draft.idle("optimizer.moments_rounding", "optimizer.moments", "needs optimizer.moments = \"bf16\"; set that, or leave this key out");
  if (o.moments != DType::f32 && o.type == "sgd" && o.momentum == 0 && o.groups.empty())
    draft.idle("optimizer.moments", "optimizer.momentum",
               "sets the type of moments, but sgd without optimizer.momentum keeps none; leave it out");
}

std::vector<std::string_view> readers_of(const Key& key) {
  std::vector<std::string_view> readers;
  if (key.section() != "optimizer") return readers;
  for (const Optimizer& row : optimizers())
    if (!row.hidden && reads(row, key.leaf())) readers.push_back(row.name);
  return readers;
}

}  // namespace tessera
