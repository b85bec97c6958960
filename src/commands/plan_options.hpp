// What `tessera plan` was asked, and the deck and machine that follow from it.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "machine/profile.hpp"

namespace tessera {

struct PlanOptions {
  std::string path, machine, trace, write;
  std::vector<std::string> overrides;
  int ranks = 1, ranks_per_node = 0, threads = 0;
  int rank = 0;            ///< whose plan it is
  double price = 0;        ///< of a rank for an hour; 0: not said
  std::vector<int> sweep;  ///< ranks
  bool schedule = false, map = false, json = false, recommend = false;
};

/// Ranks that share a node's cores, memory and adapters.
int ranks_per_node(const PlanOptions& options, const std::optional<MachineProfile>& machine);

/// The deck; what it leaves open, the machine says.
ParsedDeck parse_for(const PlanOptions& options, const std::optional<MachineProfile>& machine);

int threads_of(const PlanOptions& options, const Deck& deck, const std::optional<MachineProfile>& machine, int per_node);

/// Of a billion tokens, at what a rank costs an hour.
double cost_of_billion_tokens(double price, int ranks, double tokens_per_second);

/// `--recommend` and `--sweep`.
int recommend(const PlanOptions& options);

}  // namespace tessera
