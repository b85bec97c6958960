// What a deck should say on a machine: of all layouts of a step that fit its memory the one with the most predicted tokens/s.
#pragma once
#include <functional>
#include <map>

#include "schedule/plan/limits.hpp"
#include "schedule/simulate/figures.hpp"
#include "schedule/simulate/prediction.hpp"
#include "schedule/simulate/search_space.hpp"
#include "schedule/simulate/step_bounds.hpp"

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

/// What a deck's plan may take: another choice of offloading has other limits.
using LimitsOf = std::function<MemoryLimits(const Deck&)>;

/// The same answer as planning and predicting every point of search_space(), from few of them. Points are asked in the order of what their
/// step takes at least (SearchBounds) until that passes the runner-up; what a plan needs at least tells most of those that do not fit. Both
/// are asked again of a point's own schedule, before it is placed and simulated. What lies on disks is no faster than on the host. Equal
/// points go by fewer changes, then by the order of the space. More offloading has to gain a hundredth. "auto" is tried in the places of
/// two that make activations again, where it could win.
class Recommender {
 public:
  Recommender(const Deck& deck, const MachineProfile& machine, const Placement& placement);
  /// What is known of points is kept from one call to the next.
  Recommendation best(const LimitsOf& limits);

 private:
  struct Point {
    SearchPoint at;
    Least least;
    std::vector<const Point*> no_slower = {};  ///< the same with something on the host that it has on disks
    std::optional<TierBytes> bytes = {};
    std::optional<Prediction> prediction = {};
  };
  /// A choice of "auto", in the place of a point.
  struct Auto {
    std::vector<Change> changes;
    Deck deck;
    double least_seconds = 0;
  };
  BuildRequest request_of(const Deck& deck) const;
  void add_points(std::vector<SearchPoint> space);
  std::string digest_of_gathers(const Deck& deck);
  bool has_room(const Deck& deck, TierBytes bytes, const LimitsOf& limits) const;
  /// Looks at a point as far as it may be of use: its schedule; its bytes where it may be so fast and small; its time if that is asked for.
  void evaluate(Point& point, const std::function<bool(const TierBytes&)>& is_wanted, double most_seconds, bool with_time);
  bool fits(Point& point, const LimitsOf& limits, double most_seconds);
  static bool before(const Point* a, const Point* b);
  static const Point* worth_its_offloads(const std::vector<const Point*>& found);
  void add_least(Recommendation& result);
  static std::vector<const Point*> places_of_auto(const std::vector<const Point*>& found);
  void try_autos(Recommendation& result, const std::vector<const Point*>& found, const LimitsOf& limits);

  const Deck deck_;
  const MachineProfile machine_;
  const Placement placement_;
  std::vector<Point> points_;  ///< by least seconds
  std::optional<SearchBounds> bounds_ = {};
  std::vector<Auto> autos_ = {};                     ///< that won before
  std::map<std::string, std::string> gathers_ = {};  ///< digests of what is gathered when, by the keys that decide it
  std::int64_t planned_ = 0, simulated_ = 0;
};

/// The step of a request whose recompute is settled, with all stages of a pipeline; nothing where one of them does not fit.
std::optional<Choice> choice_of(const BuildRequest& request, const MachineProfile& machine, const Placement& placement,
                                const LimitsOf& limits);
/// A deck as it is; nothing where it does not fit.
std::optional<Choice> choice_as_is(const Deck& deck, const MachineProfile& machine, const Placement& placement, const LimitsOf& limits);

/// How many times as long as the step of the same deck without ZeRO and offload a choice's is, were memory no limit. What is made again in
/// the backward pass is the same in both.
double slowdown(const Choice& choice, const MachineProfile& machine, const Placement& placement, const LimitsOf& limits);

/// Of the parts of two steps the one by which the second is longest behind: "0.520 s more of compute".
std::string why_slower(const Prediction& first, const Prediction& second);

/// On which figures of the profile the prediction of a choice rests.
Figures figures_of_choice(const Choice& choice, const MachineProfile& machine, const Placement& placement);

}  // namespace tessera
