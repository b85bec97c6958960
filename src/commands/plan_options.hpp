// What `tessera plan` was asked, and the deck and machine that follow from it.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "deck/deck.hpp"
#include "machine/profile.hpp"
#include "schedule/plan/changes.hpp"
#include "schedule/plan/limits.hpp"

namespace tessera {

struct PlanOptions {
  std::string path, machine, network, power, trace, write;
  std::string parameters, shape;  ///< a model of so many, in place of the deck's; what it came to
  std::string text;               ///< the deck, where none is named: `path` is the option that makes it
  std::vector<std::string> overrides;
  int ranks = 1, ranks_per_node = 0, threads = 0;
  int rank = 0;            ///< whose plan it is
  double price = 0;        ///< of a rank for an hour; 0: not said
  std::string tokens;      ///< of a whole run; empty: not said
  double efficiency = 0;   ///< share of the profile's rates that is reached; 0: as the profile says
  std::vector<int> sweep;  ///< ranks
  bool schedule = false, map = false, json = false, recommend = false, meshes = false, verbose = false;
};

/// The profile that is named, with --network, --power and --efficiency; nothing where none is named.
std::optional<MachineProfile> machine_of(const PlanOptions& options);
/// --machine, --network, --power and --efficiency, as they are written again.
std::string machine_words(const PlanOptions& options);

/// A deck of such a [model] for so many ranks: stage 3, all layers made again, about a million tokens a step.
std::string usual_deck(const std::string& model, std::int64_t sequence_length, std::int64_t ranks);
/// Of --ranks, or of --sweep the most.
std::int64_t most_ranks(const PlanOptions& options);
/// "7e9", "7B": a count with one of these units (K, M, B, T) or none. 0: it is no such thing.
double read_count(const std::string& text, std::string_view units);
/// --tokens, or Error(usage).
double read_tokens(const std::string& text);
/// Where DECK is the name of a model, a deck of it.
PlanOptions with_model(PlanOptions options);
/// A deck that lacks no more than what no plan needs, read again with some value of it by `read`, which takes overrides.
ParsedDeck without_needless_keys(const ParsedDeck& parsed, const std::function<ParsedDeck(const std::vector<std::string>&)>& read);

/// What `--parameters` asks becomes overrides of the deck, or a deck where none is named.
PlanOptions with_parameters(PlanOptions options);

/// The deck for so many ranks; 0: for any.
ParsedDeck read_deck(const PlanOptions& options, const std::vector<std::string>& overrides, int ranks);

/// Ranks that share a node's cores, memory and adapters.
int ranks_per_node(const PlanOptions& options, const std::optional<MachineProfile>& machine);

/// The deck; what it leaves open, the machine says.
ParsedDeck parse_for(const PlanOptions& options, const std::optional<MachineProfile>& machine);

int threads_of(const PlanOptions& options, const Deck& deck, const std::optional<MachineProfile>& machine, int per_node);

/// Changes that are said, of all that advise() finds.
inline constexpr std::size_t most_advice = 3;

/// What advise() says of a step of these ranks on --machine, a line for each of the best changes (costly_keys.hpp).
std::vector<std::string> costly_lines(const PlanOptions& options);

/// Of a billion tokens, at what a rank costs an hour.
double cost_of_billion_tokens(double price, int ranks, double tokens_per_second);
/// Of a rank for an hour: --price, or what the profile says; 0: neither does.
double price_of(const PlanOptions& options, const MachineProfile& machine);
/// What a run of so many tokens takes.
struct RunCost {
  double days = 0, rank_hours = 0, money = 0;
};
RunCost cost_of_run(double tokens, double tokens_per_second, int ranks, double price);
/// "15.0 T tokens: 271 days, 418,000 GPU-hours, 1,045,000 at 2.5 an hour"; without --tokens of a billion.
Json run_json(const PlanOptions& options, const MachineProfile& machine, int ranks, double tokens_per_second);
std::string run_cost_text(const PlanOptions& options, const MachineProfile& machine, int ranks, double tokens_per_second);

/// `--recommend` and `--sweep`.
int recommend(const PlanOptions& options);
/// The same with `--meshes`.
int recommend_meshes(const PlanOptions& options);

/// "slowdown  1.04 times the step without ZeRO and offload, were memory no limit"; below 1 it is a speed-up.
std::string slowdown_line(double slowdown);

/// As many changes as it takes to say it: none is the deck itself.
std::string words_of(const std::vector<Change>& changes);
/// The user's deck with the changes, where --write says: what the machine said of memory stays out, so that it is said again where the
/// deck is used. `found` is a sentence on what is predicted.
void write_recommended(const PlanOptions& options, const std::vector<Change>& changes, const std::string& found, int ranks,
                       const std::string& machine);
/// What a plan of the deck may take, with so much more for its kernels.
MemoryLimits limits_with(const Deck& deck, int ranks, std::int64_t more = 0);
/// "GPU 54.1 GiB of 76.0 GiB, ... on each rank"
std::string memory_text(const TierBytes& bytes, const MemoryLimits& limits);

}  // namespace tessera
