// What follows where the ranks of a run have ended, inside an allocation. job_end.hpp says it of a job that its scheduler starts again, by
// the same rules. Pure: no process, clock or file is asked but by Questions.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tessera {

/// Where a start was lost, of several places the one that was named first.
struct LostPlace {
  std::string node = {};    ///< empty: nobody named one
  std::string rank = "-";   ///< "2", "2-3"; "-": not known
  std::string way = {};     ///< "Killed", "ended"
  bool whole_node = false;  ///< by the launcher's word
};

/// How a start of the ranks ended.
struct StartEnd {
  int status = 0;  ///< of the cause
  std::optional<std::int64_t> saved = {};
  std::optional<std::int64_t> copied = {};  ///< the step after which the state lies in the memory of other nodes too
  bool stepped = false;                     ///< it made a step
  bool asked = false;                       ///< somebody has asked to stop, during it or since
  std::optional<LostPlace> lost = {};
  bool given_up = false;  ///< after it somebody had to mend something: starts are counted from there
};

/// Which ranks run where. Survivors keep their nodes and places: what they have kept in memory lies there.
struct RankPlaces {
  int ranks = 1, per_node = 1;
  std::vector<std::string> nodes = {};  ///< in the order of their ranks; none: this machine alone, which is not asked for
  std::vector<std::string> spares = {};
  friend bool operator==(const RankPlaces&, const RankPlaces&) = default;
};

struct SuperviseRules {
  int least = 1;  ///< ranks
  int tries = 3;  ///< starts that saved no newer step
};

struct Questions {
  /// Of these nodes those that do not answer.
  std::function<std::vector<std::string>(const std::vector<std::string>&)> silent;
  /// Whether the deck can run on so many ranks.
  std::function<bool(int)> fits;
};

struct Decision {
  std::optional<int> status = {};  ///< the supervisor ends with it; else the ranks start again
  bool given_up = false;           ///< somebody must mend something first
  double pause_seconds = 0;        ///< before they do
  RankPlaces places = {};          ///< where
  std::vector<std::string> left_out = {};
  std::string words = {};  ///< what ended, and what follows
};

/// `ends`: of all starts, this one last.
Decision decide(const SuperviseRules& rules, const RankPlaces& now, std::span<const StartEnd> ends, const Questions& ask);

/// Starts in a row, up to the last, that came no further: they saved or copied nothing, or no newer step than the last that did.
int starts_without_progress(std::span<const StartEnd> ends);
/// Launchers and hosts do not always say the domain of a node.
bool is_same_node(const std::string& a, const std::string& b);
/// At least two of the starts ended at the node.
bool ends_starts(const std::string& node, std::span<const StartEnd> ends);
/// Why a run that lost something, or was asked to stop, is given up.
struct Hopeless {
  int status = 0;
  std::string words = {};
};
/// Nothing while another start may come further. `tries`: starts that saved no newer step.
std::optional<Hopeless> hopeless_after(std::span<const StartEnd> ends, int tries);
/// What an end was: "the run lost rank 2 on n3 (Killed)".
std::string describe_end(const StartEnd& end);
/// "rank 2 on n3 (Killed)"; empty where nothing is known.
std::string name_of(const LostPlace& lost);

}  // namespace tessera
