// What a deck should say on a machine: all layouts of a step that fit its memory, by predicted tokens/s.
#pragma once
#include <set>
#include <span>

#include "schedule/plan/changes.hpp"
#include "schedule/plan/limits.hpp"
#include "schedule/simulate/prediction.hpp"

namespace tessera {

struct Choice {
  std::vector<Change> changes;  ///< of the deck; none that leaves it as it is
  Deck deck;                    ///< with them
  TierBytes bytes{};
  Prediction prediction;
  std::optional<RecomputeChoice> recompute;  ///< of "auto"
};

struct Recommendation {
  std::optional<Choice> first;      ///< nothing where no choice fits
  std::optional<Choice> runner_up;  ///< the fastest that differs in more than what is gathered ahead and kept between two uses
  TierBytes least{};                ///< of the smallest plan, where no choice fits
  std::int64_t choices = 0, planned = 0, simulated = 0;
};

/// The space that is searched: stage x tiers of optimizer and parameters that the profile has figures of x recompute x batch.micro, and at
/// stage 3 what is gathered ahead and kept. Each point by its changes, against the deck, which all pass the rules of decks; `group` is the
/// same for points that differ in the last two alone.
struct SearchPoint {
  std::vector<Change> changes;
  Deck deck;
  std::size_t group = 0;
};
std::vector<SearchPoint> search_space(const Deck& deck, const MachineProfile& machine, int ranks);

/// The same answer as planning and predicting every point, from few of them: a step takes no less than its compute and no less than its
/// reductions, so that points are asked in the order of that bound until it passes the runner-up; what is kept through the run tells most
/// of those that do not fit without a plan. Of each point a dozen micro-batches are played at most. Equal points go by fewer changes, then
/// by the order of the space. "auto" is tried in the places of the fastest three that make activations again.
class Recommender {
 public:
  Recommender(const Deck& deck, const MachineProfile& machine, const Placement& placement);
  /// What is known of points is kept from one call to the next.
  Recommendation best(const MemoryLimits& limits);

 private:
  struct Point {
    SearchPoint at;
    double group_seconds = 0, least_seconds = 0;  ///< that a step takes: of any point of its group, and of this one once it is built
    TierBytes kept{};                             ///< lives through the run: no plan needs less
    bool is_known = false;
    bool is_another = false;  ///< the same tasks as another of its group
    std::optional<TierBytes> bytes = {};
    std::optional<Prediction> prediction = {};
  };
  BuildRequest request_of(const Deck& deck) const;
  double least_seconds(const Schedule& schedule, std::span<const Lane> of) const;
  void evaluate(Point& point, const MemoryLimits* limits, double most_seconds);
  /// Then its prediction is known.
  bool fits(Point& point, const MemoryLimits& limits, double most_seconds);
  static bool before(const Point& a, const Point& b);
  std::optional<Choice> finished(const std::vector<Change>& changes, const Deck& deck, const MemoryLimits& limits) const;
  void add_least(Recommendation& result);
  void try_autos(Recommendation& result, const std::vector<const Point*>& found, const MemoryLimits& limits);

  const Deck deck_;
  const MachineProfile machine_;
  const Placement placement_;
  std::vector<Point> points_;                                     ///< by their group's seconds
  std::vector<std::pair<std::vector<Change>, Deck>> autos_ = {};  ///< choices of "auto" that were tried
  std::set<std::pair<std::size_t, std::string>> known_ = {};      ///< groups with digests of schedules
  std::int64_t planned_ = 0, simulated_ = 0;
};

/// A deck as it is; nothing where it does not fit.
std::optional<Choice> choice_as_is(const Deck& deck, const MachineProfile& machine, const Placement& placement, const MemoryLimits& limits);

/// Of the parts of two steps the one by which the second is longest behind: "0.520 s more of compute".
std::string why_slower(const Prediction& first, const Prediction& second);

}  // namespace tessera
