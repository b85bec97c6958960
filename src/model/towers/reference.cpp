// The reference: the model as a run began with it. Its loss on each batch stands beside the model's.
#include "model/towers/towers.hpp"

namespace tessera {
namespace {

void leave_out(Deck& deck) { deck.reference = {}; }

bool wanted(const Deck& deck) { return deck.reference.model != ReferenceModel::none; }

/// Adapters that are drawn begin with B = 0: the model that they begin with is the one without them, which stays as it is where no step
/// moves the biases of routers.
bool shares_tensors(const Deck& deck) {
  return deck.model.lora.rank > 0 && deck.model.lora.init.empty() && deck.model.router_balance != RouterBalance::bias;
}

/// The same model, whose products are in the compute type: scales of fp8 are the training model's.
Deck of_start(const Deck& deck) {
  Deck start = deck;
  if (shares_tensors(deck)) start.model.lora = {};
  start.model.freeze.clear();
  start.precision.fp8 = Fp8Recipe::none;
  return start;
}

}  // namespace

const TowerRow reference_tower{
    .name = "reference", .wanted = wanted, .deck = of_start, .shares_tensors = shares_tensors, .leave_out = leave_out};

}  // namespace tessera
