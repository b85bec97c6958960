// What a run comes to in numbers: what advice is made of, and the head of its page.
#pragma once
#include <map>
#include <optional>

#include "deck/deck.hpp"
#include "report/page/run_history.hpp"
#include "report/page/step_trace_data.hpp"
#include "train/observe/goodput.hpp"

namespace tessera {

/// Memory of a tier on a rank.
struct TierUse {
  std::string tier;
  std::int64_t bytes = 0;
  std::optional<std::int64_t> limit = {};
  std::string source = {};  ///< of the limit
  std::vector<std::pair<std::string, std::int64_t>> categories = {};
};

/// A step that stood still.
struct StalledStep {
  std::int64_t step = 0;
  double seconds = 0, usual = 0;
  std::string text;  ///< a sentence
};

/// A rank that computed longer than the others in a traced step.
struct SlowRank {
  int rank = 0;
  double excess = 0;  ///< over the median, as a share of it
};

struct RunFigures {
  std::int64_t steps_done = 0;
  int ranks = 1;
  int ranks_per_node = 0;        ///< 0: not known
  double step_seconds = 0;       ///< median of the last thousand
  double tokens_per_second = 0;  ///< median of the same
  std::optional<Mfu> mfu = {};   ///< medians of the same
  std::optional<double> loss = {}, best_validation = {};
  std::int64_t best_step = 0;     ///< of best_validation
  std::int64_t without_loss = 0;  ///< steps whose loss is no number
  /// Shares of a step by part of run.breakdown_every, means over the rows that have them; none without it.
  std::map<std::string, double> shares = {};
  std::optional<Goodput> goodput = {};  ///< where events.jsonl tells it
  double stall_share = 0;               ///< of the time of steps and saves
  double save_seconds = 0;              ///< of a save that blocks, mean
  std::int64_t starts = 0, killed = 0;
  std::vector<TierUse> memory = {};
  std::vector<SlowRank> slow = {};         ///< the slowest first
  std::vector<StalledStep> stalls = {};    ///< in their order
  std::vector<std::string> warnings = {};  ///< of the last start, as `tessera runs` counts them

  double share(const std::string& part) const {
    const auto found = shares.find(part);
    return found == shares.end() ? 0 : found->second;
  }
};

/// Ranks more than a twentieth over the median.
std::vector<SlowRank> slow_ranks(const std::vector<RankTimes>& ranks);
RunFigures figures_of_run(const RunHistory& run, const std::optional<StepTraces>& traced);

}  // namespace tessera
