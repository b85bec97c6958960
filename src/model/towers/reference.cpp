// The reference: the model as a run began with it, or the model without its adapters. Its loss on each batch stands beside the model's, or
// preferences read its log-probabilities.
#include "model/towers/towers.hpp"

namespace tessera {
namespace {

/// Without it no loss of pairs can be made.
void leave_out(Deck& deck) { deck.reference = {}, deck.preference = {}; }

bool wanted(const Deck& deck) { return deck.reference.model != ReferenceModel::none || deck.preference.runs_reference(); }

bool without_adapters(const Deck& deck) { return deck.preference.reference == PreferenceReference::adapter; }

/// Adapters that are drawn begin with B = 0: the model that they begin with is the one without them.
bool begins_without_adapters(const LoraKeys& lora) { return lora.rank > 0 && lora.init.empty(); }

/// If no step moves anything of that model.
bool shares_tensors(const Deck& deck) {
  const LoraKeys& lora = deck.model.lora;
  return (begins_without_adapters(lora) || without_adapters(deck)) && lora.modules_to_save.empty() &&
         deck.model.router_balance != RouterBalance::bias;
}

/// The same model, whose products are in the compute type: scales of fp8 are the training model's.
Deck of_start(const Deck& deck) {
  Deck start = deck;
  if (begins_without_adapters(deck.model.lora) || without_adapters(deck)) start.model.lora = {};
  start.model.lora.dropout = 0;
  start.model.freeze.clear();
  start.precision.fp8 = Fp8Recipe::none;
  start.preference.of_reference = deck.preference.on();
  return start;
}

}  // namespace

const TowerRow reference_tower{
    .name = "reference", .wanted = wanted, .deck = of_start, .shares_tensors = shares_tensors, .leave_out = leave_out};

}  // namespace tessera
