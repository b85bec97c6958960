#include "supervise/decide.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.hpp"

namespace tessera {
namespace {

constexpr double longest_pause = 60;  // seconds

using Names = std::vector<std::string>;

bool holds(const Names& names, const std::string& name) { return std::find(names.begin(), names.end(), name) != names.end(); }

/// "n2.cluster" -> "n2"
std::string short_of(const std::string& host) { return host.substr(0, host.find('.')); }

/// The node of these that is meant; empty where there is none.
std::string node_among(const Names& nodes, const std::string& said) {
  if (holds(nodes, said)) return said;
  for (const std::string& node : nodes)
    if (is_same_node(node, said)) return node;
  return "";
}

/// Whether the last two starts, of at least two that came no further, lost the same rank in the same way on two nodes.
bool goes_with_rank(std::span<const StartEnd> ends, int tries) {
  if (tries < 2 || ends.size() < 2) return false;
  const auto &a = ends[ends.size() - 2].lost, &b = ends.back().lost;
  return a && b && a->rank != "-" && !a->node.empty() && !b->node.empty() && a->rank == b->rank && a->way == b->way && a->node != b->node;
}

/// 0, 1, 2, 4 .. s for each start in a row that made no step: a lost rank of a run at work waits for nothing.
double pause_after(std::span<const StartEnd> ends) {
  int idle = 0;
  while (idle < std::ssize(ends) && !ends[ends.size() - 1 - static_cast<std::size_t>(idle)].stepped) ++idle;
  return idle < 2 ? 0 : std::min(longest_pause, std::ldexp(1.0, std::min(idle - 2, 30)));
}

std::string named(const Names& names) { return fmt::format("{}", fmt::join(names, ", ")); }

/// The nodes of a start after a loss, while they are sought.
class NextPlaces {
 public:
  NextPlaces(const RankPlaces& now, const SuperviseRules& rules, const Questions& ask) : next_(now), rules_(rules), ask_(ask) {}

  /// Those that are lost with the last start: it named one, or they do not answer.
  Names lost_nodes(const std::optional<LostPlace>& lost) const {
    if (next_.nodes.empty()) return {};
    const std::string at = lost ? node_among(next_.nodes, lost->node) : "";
    Names dead = !at.empty() && lost->whole_node ? Names{at} : ask_.silent(at.empty() ? next_.nodes : Names{at});
    if (dead.empty() || at.empty()) return dead;
    // One is gone: whether others went with it is asked before ranks wait for them.
    Names others;
    for (const std::string& node : next_.nodes)
      if (!holds(dead, node)) others.push_back(node);
    const Names more = others.empty() ? Names{} : ask_.silent(others);
    dead.insert(dead.end(), more.begin(), more.end());
    return dead;
  }

  void say(const std::string& text) { said_.push_back(text); }

  /// Puts a spare that answers in the place of a node; false where there is none.
  bool replace(const std::string& node) {
    while (!next_.spares.empty()) {
      const std::string spare = next_.spares.front();
      next_.spares.erase(next_.spares.begin());
      if (!ask_.silent({spare}).empty()) {
        say(fmt::format("the spare node {} does not answer and is not used", spare));
        left_out_.push_back(spare);
        continue;
      }
      *std::find(next_.nodes.begin(), next_.nodes.end(), node) = spare;
      left_out_.push_back(node);
      say(fmt::format("{} replaces {}", spare, node));
      return true;
    }
    return false;
  }

  /// On the nodes but these as many ranks as the deck can run on; false where that is none.
  bool shrink(const Names& without) {
    RankPlaces fewer = next_;
    std::erase_if(fewer.nodes, [&](const std::string& node) { return holds(without, node); });
    int ranks = std::min(next_.ranks, static_cast<int>(fewer.nodes.size()) * next_.per_node);
    while (ranks >= rules_.least && !ask_.fits(ranks)) --ranks;
    if (ranks < std::max(rules_.least, 1)) return false;
    // The deck may not take all that there is room for: what is left over can take a place later.
    const auto over = fewer.nodes.begin() + (ranks + fewer.per_node - 1) / fewer.per_node;
    fewer.spares.insert(fewer.spares.end(), over, fewer.nodes.end());
    fewer.nodes.erase(over, fewer.nodes.end());
    fewer.ranks = ranks;
    next_ = fewer;
    left_out_.insert(left_out_.end(), without.begin(), without.end());
    say(fmt::format("no spare node is left for {}, so the run continues with {} rank{}", named(without), ranks, ranks == 1 ? "" : "s"));
    return true;
  }

  RankPlaces next_;
  Names said_, left_out_;

 private:
  const SuperviseRules& rules_;
  const Questions& ask_;
};

/// The node of these at which at least two starts ended; empty where there is none.
std::string node_that_ends_starts(const Names& nodes, std::span<const StartEnd> ends) {
  const auto found = std::ranges::find_if(nodes, [&](const std::string& node) { return ends_starts(node, ends); });
  return found == nodes.end() ? "" : *found;
}

/// Leaves a node out at which two starts ended: for a spare, or for fewer ranks where both of the last starts, which came no further, ended
/// there.
void leave_out_breaking_node(NextPlaces& places, std::span<const StartEnd> ends, int tries) {
  const std::string node = node_that_ends_starts(places.next_.nodes, ends);
  if (node.empty()) return;
  const auto ended_there = [&](const StartEnd& end) { return end.lost && is_same_node(node, end.lost->node); };
  const std::string twice = fmt::format("two starts ended at {}", node);
  if (!ended_there(ends.back())) return;  // it was said then
  places.say(twice);
  if (places.replace(node)) return;
  const bool keeps_on = tries >= 2 && ends.size() >= 2 && ended_there(ends[ends.size() - 2]);
  if (keeps_on && places.next_.nodes.size() > 1 && places.shrink({node})) return;
  places.say("without it there are too few nodes");
}

Decision ends_with(int status, bool given_up, const RankPlaces& now, const std::string& words) {
  return {.status = status, .given_up = given_up, .places = now, .words = words};
}

Decision after_loss(const SuperviseRules& rules, const RankPlaces& now, std::span<const StartEnd> ends, const Questions& ask) {
  const StartEnd& end = ends.back();
  const std::string what = describe_end(end);
  if (end.asked)
    return ends_with(end.status, false, now,
                     what + ", and was asked to stop: it does not start again. The next start resumes from the last checkpoint");
  if (const auto hopeless = hopeless_after(ends, rules.tries)) return ends_with(hopeless->status, true, now, what + "; " + hopeless->words);
  NextPlaces places(now, rules, ask);
  Names homeless;
  for (const std::string& node : places.lost_nodes(end.lost)) {
    places.say(fmt::format("{} does not answer", node));
    if (!places.replace(node)) homeless.push_back(node);
  }
  if (!homeless.empty() && !places.shrink(homeless))
    return ends_with(end.status, false, now,
                     fmt::format("{}; {}; the nodes that are left ({}) have no spare, and from {} ranks up the deck runs on no number of "
                                 "ranks that they have space for: start the same command on other nodes, or allow fewer ranks (--least)",
                                 what, named(places.said_), now.nodes.size() - homeless.size(), rules.least));
  leave_out_breaking_node(places, ends, starts_without_progress(ends));
  std::string words = what;
  for (const std::string& said : places.said_) words += "; " + said;
  if (places.said_.empty() && !now.nodes.empty())
    words += end.lost && !end.lost->node.empty() ? "; the node answers" : "; all nodes answer";
  return {.pause_seconds = pause_after(ends), .places = places.next_, .left_out = places.left_out_, .words = words};
}

}  // namespace

int starts_without_progress(std::span<const StartEnd> ends) {
  int tries = 0;
  std::optional<std::int64_t> last;
  for (const StartEnd& end : ends) {
    const std::optional<std::int64_t> came_to = std::max(end.saved, end.copied);  // nothing is less than any step
    tries = came_to && (!last || *came_to > *last) ? 0 : tries + 1;
    if (came_to) last = came_to;
    if (end.given_up) tries = 0;
  }
  return tries;
}

bool is_same_node(const std::string& a, const std::string& b) { return !a.empty() && !b.empty() && short_of(a) == short_of(b); }

bool ends_starts(const std::string& node, std::span<const StartEnd> ends) {
  return std::ranges::count_if(ends, [&](const StartEnd& end) { return end.lost && is_same_node(node, end.lost->node); }) >= 2;
}

std::optional<Hopeless> hopeless_after(std::span<const StartEnd> ends, int tries) {
  const int without = starts_without_progress(ends);
  if (ends.back().status == static_cast<int>(ExitCode::lost) && goes_with_rank(ends, without))
    return Hopeless{static_cast<int>(ExitCode::do_not_requeue),
                    "the last two starts lost the same rank in the same way on two nodes, so the fault would repeat"};
  if (without < tries) return std::nullopt;
  return Hopeless{
      static_cast<int>(ExitCode::no_progress),
      fmt::format("the last {} starts saved no newer step: look at how each ended, or save more often (checkpoint.every)", without)};
}

std::string describe_end(const StartEnd& end) {
  const std::string at = end.lost ? name_of(*end.lost) : "";
  switch (static_cast<ExitCode>(end.status)) {
    case ExitCode::ok:
      return "the run is done";
    case ExitCode::interrupted:
      return end.saved ? "the run was asked to stop, and its state is saved" : "the run was asked to stop, with nothing to save";
    case ExitCode::lost:
      return "the run lost " + (at.empty() ? "a rank or a node, or waited too long" : at);
    default:
      return fmt::format(
          "tessera ended with status {} (docs/operations.md has the table), which would repeat: the messages of the ranks are above",
          end.status);
  }
}

std::string name_of(const LostPlace& lost) {
  std::string text = lost.rank == "-" ? "" : "rank " + lost.rank;
  if (!lost.node.empty()) text += text.empty() ? (lost.whole_node ? "node " : "a rank on ") + lost.node : " on " + lost.node;
  return text.empty() || lost.way.empty() ? text : fmt::format("{} ({})", text, lost.way);
}

Decision decide(const SuperviseRules& rules, const RankPlaces& now, std::span<const StartEnd> ends, const Questions& ask) {
  const StartEnd& end = ends.back();
  const bool done = end.status == static_cast<int>(ExitCode::ok), stopped = end.status == static_cast<int>(ExitCode::interrupted);
  if (end.status == static_cast<int>(ExitCode::lost)) return after_loss(rules, now, ends, ask);
  return ends_with(end.status, !done && !stopped, now, describe_end(end));
}

}  // namespace tessera
