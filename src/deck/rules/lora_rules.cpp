// What goes with low-rank adapters.
#include "deck/rules/draft.hpp"

namespace tessera {

void check_lora(Draft& draft) {
  if (!draft.good({"lora.rank"})) return;
  const ModelKeys& m = draft.deck.model;
  if (m.lora.rank == 0) {
    for (const std::string_view key : {"lora.alpha", "lora.dropout", "lora.targets", "lora.modules_to_save", "lora.scaling", "lora.init"})
      if (draft.differs(key)) draft.idle(key, "lora.rank", "has no effect with lora.rank = 0; set lora.rank or leave this key out");
    return;
  }
  if (draft.good({"lora.init", "run.init"}) && !m.lora.init.empty() && draft.deck.run.init.empty())
    draft.fault({"lora.init", "run.init"},
                "an adapter fits only the model that it was made for; name that model's folder with run.init too");
  if (draft.good({"model.experts", "model.router_balance", "model.router_bias_rate"}) && m.experts > 0 &&
      m.router_balance == RouterBalance::bias && m.router_bias_rate > 0)
    draft.fault({"lora.rank", "model.router_balance", "model.router_bias_rate"},
                "expert biases that follow the load would change the model, which adapters must leave unchanged; set "
                "model.router_bias_rate = 0.0, model.router_balance = \"loss\", or lora.rank = 0");
}

}  // namespace tessera
