// What goes with [metrics].
#include <fmt/format.h>

#include "base/listen_address.hpp"
#include "deck/rules/draft.hpp"

namespace tessera {

void check_metrics(Draft& draft) {
  for (const auto& [key, choice] : {std::pair{"metrics.wandb_team", "metrics.wandb"}, std::pair{"metrics.wandb_group", "metrics.wandb"},
                                    std::pair{"metrics.mlflow_uri", "metrics.mlflow"}})
    if (draft.good({key, choice}) && draft.differs(key) && !draft.differs(choice))
      draft.idle(key, choice, fmt::format("has no effect without {}; set that, or leave this key out", choice));
  if (!draft.good({"metrics.prometheus"})) return;
  const std::string& address = draft.deck.metrics.prometheus;
  if (!address.empty() && !parse_listen_address(address))
    draft.fault({"metrics.prometheus"},
                fmt::format("{} is not an address to listen at; write \"9400\" for programs of the same node, an IPv4 address in numbers "
                            "(or localhost) with a port, as \"10.0.0.5:9400\", or \"0.0.0.0:9400\" for everybody",
                            toml_string(address)));
}

}  // namespace tessera
