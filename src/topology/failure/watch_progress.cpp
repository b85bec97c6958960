// A run that stands still: seen by rank 0, said once, with the stacks of whom the others wait for.
#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/clock.hpp"
#include "topology/failure/stacks.hpp"
#include "topology/failure/watch.hpp"

namespace tessera {
namespace {

constexpr double gap_seconds = 1;            // between looks: where it is more this process did not run
constexpr double awaited_look_seconds = 1;   // between looks for whom the others wait
constexpr double read_seconds = 1;           // for the stacks of a rank
constexpr double report_seconds = 1.5;       // for those of all, before what there is is said
constexpr std::size_t most_stacks = 4;       // ranks whose stacks are shown
constexpr std::size_t most_text = 32 << 10;  // of a rank's stacks

double longest_wait(const Note& note) {
  double longest = 0;
  for (const auto& [what, seconds] : note.waits) longest = std::max(longest, seconds);
  return longest;
}

}  // namespace

void Watch::watch_progress(const WatchdogOptions& options, std::function<void(const std::string&)> end) {
  std::lock_guard lock(mutex_);
  watchdog_ = options;
  end_ = std::move(end);
  judged_at_ = judged_from_ = heard_up_ = now_seconds();
  still_since_.reset(), report_.reset();
}

void Watch::judge_progress() {
  const double now = now_seconds(), gap = judged_at_ > 0 ? now - judged_at_ : 0;
  judged_at_ = now;
  if (gap > gap_seconds) judged_from_ = now;
  if (rank_ == 0) note_awaited(now, gap);
  if (!watchdog_.on || ending() || lost_ >= 0) return;
  if (rank_ == 0) {
    if (report_) return end_report_when_read();
    const double still = seconds_still();
    const Note own = whereabouts_.note();
    const bool in_program = std::ranges::any_of(members_, [](const Member& m) { return !m.note.work.program.empty(); });
    const double limit = watchdog_limit(watchdog_, own.work.longest_step, in_program || !own.work.program.empty());
    if (still >= limit && !still_since_) {
      begin_report(still, limit);
    } else if (still < limit && still_since_) {
      sayings_.push_back({fmt::format("the run continues after {:.0f} s in which no rank had moved", now - *still_since_), "", false});
      still_since_.reset();
    }
  } else {
    judge_root();
  }
}

/// While this rank stands still, once a second: whom the notes say that the others wait for.
void Watch::note_awaited(double now, double gap) {
  if (gap > gap_seconds) {
    awaited_.add_own_stop(now, gap);
    awaited_at_ = now;
    return;
  }
  if (now - awaited_at_ < awaited_look_seconds) return;
  const double seconds = std::min(now - std::exchange(awaited_at_, now), 2 * awaited_look_seconds);
  const Note own = whereabouts_.note();
  if (own.work.step == 0 || std::max(own.work.still, longest_wait(own)) < awaited_look_seconds) return;
  awaited_.add(now, seconds, awaited_ranks(notes(silent_seconds)));
}

AwaitedRanks Watch::awaited_since(double begin) {
  std::lock_guard lock(mutex_);
  AwaitedRanks awaited = awaited_.since(begin);
  if (!awaited.ranks.empty()) awaited.names = name_ranks(awaited.ranks, plan_.hosts);
  return awaited;
}

std::vector<Spent> Watch::spent_of_ranks() {
  std::lock_guard lock(mutex_);
  std::vector<Spent> all;
  for (std::size_t r = 0; r < members_.size(); ++r) all.push_back(r == 0 ? whereabouts_.note().work.spent : members_[r].note.work.spent);
  return all;
}

/// Of all ranks the one that moved last; by a note that came before, it has not moved since.
double Watch::seconds_still() const {
  const double now = now_seconds();
  double least = now - judged_from_;
  for (std::size_t r = 0; r < members_.size(); ++r) {
    const Member& m = members_[r];
    if (m.ended || !m.reached) continue;
    const double still = r == 0 ? whereabouts_.note().work.still : m.note.work.still;
    if (still >= 0) least = std::min(least, still + (r == 0 ? 0 : now - m.heard));
  }
  return least;
}

void Watch::compare_ranks() {
  const Spent own = whereabouts_.note().work.spent;
  std::vector<const Spent*> ranks;
  for (std::size_t r = 0; r < members_.size(); ++r) {
    const Spent& spent = r == 0 ? own : members_[r].note.work.spent;
    ranks.push_back(spent.steps > 0 ? &spent : nullptr);
  }
  for (Straggler& found : stragglers_.judge(ranks, now_seconds())) {
    found.host = host(found.rank);
    slow_.push_back(std::move(found));
    slow_found_ = true;
  }
}

std::vector<Straggler> Watch::take_stragglers() {
  if (!slow_found_) return {};
  std::lock_guard lock(mutex_);
  slow_found_ = false;
  return std::exchange(slow_, {});
}

void Watch::begin_report(double still, double limit) {
  report_ = StillReport{
      .begun = now_seconds(), .still = still, .limit = limit, .run = describe_still(notes(silent_seconds), plan_.hosts), .stacks = {}};
  still_since_ = now_seconds() - still;
  for (std::size_t i = 0; i < std::min(report_->run.awaited.size(), most_stacks); ++i) look_at(report_->run.awaited[i]);
}

/// Asks a rank of the same node, the next that answers.
void Watch::look_at(int rank) {
  const std::vector<RankNote> all = notes(silent_seconds);
  const auto at = [](int r) { return static_cast<std::size_t>(r); };
  for (int next = (rank + 1) % plan_.tree.ranks(); next != rank; next = (next + 1) % plan_.tree.ranks()) {
    if (plan_.leaders[at(next)] != plan_.leaders[at(rank)] || !all[at(next)].answered || all[at(next)].ended) continue;
    report_->stacks[rank] = "";
    return send_to(next, MessageKind::look, fmt::format("{} {}", next, rank));
  }
  report_->stacks[rank] = "\n  not read: no other rank of its node answers";
}

void Watch::read_stacks_of(int rank) {
  if (rank < 0 || rank >= plan_.tree.ranks()) return;
  to_read_.push_back(rank);
  if (reading_ >= 0) return;
  if (reader_.joinable()) reader_.join();
  reading_ = std::exchange(to_read_.front(), to_read_.back()), to_read_.pop_back();
  // On a thread of its own: whoever is looked at may keep it waiting.
  reader_ = std::thread([this, process = plan_.processes[static_cast<std::size_t>(reading_)]] {
    pthread_setname_np(pthread_self(), "stacks");
    const std::string text = process.means_the_same_here()
                                 ? read_stacks(process.pid, read_seconds)
                                 : std::string("\n  not read: its process is in another PID namespace (its own container)");
    std::lock_guard lock(mutex_);
    read_ = text.substr(0, most_text);
    wake();
  });
}

void Watch::send_stacks_that_were_read() {
  if (!read_) return;
  const int rank = std::exchange(reading_, -1);
  const std::string text = *std::exchange(read_, std::nullopt);
  reader_.join();
  if (rank_ != 0 && rank == 0) {  // rank 0 itself does not answer: this rank speaks
    if (report_) report_->stacks[0] = text;
  } else {
    send_up(MessageKind::stacks, fmt::format("{}\n{}", rank, text));
  }
  if (!to_read_.empty()) {
    const int next = to_read_.back();
    to_read_.pop_back();
    read_stacks_of(next);
  }
}

void Watch::take_stacks(const std::string& text) {
  const std::size_t end = text.find('\n');
  if (!report_ || end == text.npos) return;
  if (const auto found = report_->stacks.find(std::atoi(text.c_str())); found != report_->stacks.end())
    found->second = text.substr(end + 1);
}

void Watch::end_report_when_read() {
  const bool open = std::ranges::any_of(report_->stacks, [](const auto& stack) { return stack.second.empty(); });
  if (open && now_seconds() - report_->begun < report_seconds) return;
  const StillReport& r = *report_;
  std::string text =
      fmt::format("no rank has moved for {:.0f} s (watchdog.limit{}):{}\n{}", r.still,
                  watchdog_.limit_seconds > 0 ? "" : fmt::format(", by the steps before {:.0f} s", r.limit), r.run.table, r.run.cause);
  for (const auto& [rank, stack] : r.stacks)
    text += fmt::format("\nstacks of rank {} on {}, process {}:{}", rank, host(rank), plan_.processes[static_cast<std::size_t>(rank)].pid,
                        stack.empty() ? "\n  not read in time" : stack);
  sayings_.push_back({text, fmt::format("no rank has moved for {:.0f} s: {}; run again to resume", r.still, r.run.cause)});
  report_.reset();
}

/// The lowest rank below rank 0 looks whether that one answers; the others below know as little of the rest.
void Watch::judge_root() {
  if (plan_.tree.children(0).front() != rank_ || links_.up.socket() < 0) return;
  if (report_) return end_report_when_read();
  const double now = now_seconds(), silent = std::min(now - heard_up_, now - judged_from_);
  const Note own = whereabouts_.note();
  const double limit = watchdog_limit(watchdog_, own.work.longest_step, !own.work.program.empty());
  if (silent < limit) {
    still_since_.reset();
  } else if (!still_since_ && own.work.still >= limit) {
    const std::vector<RankNote> known{{0, false, false, silent, {}}, {rank_, true, false, 0, own}};
    report_ = StillReport{.begun = now, .still = silent, .limit = limit, .run = describe_still(known, plan_.hosts), .stacks = {}};
    still_since_ = now - silent;
    report_->stacks[0] = "";
    if (plan_.leaders[static_cast<std::size_t>(rank_)] == 0)
      read_stacks_of(0);
    else
      report_->stacks[0] = "\n  not read: rank 0 is on another node";
  }
}

}  // namespace tessera
