#include "topology/failure/watch_progress.hpp"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "topology/failure/stacks.hpp"

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

WatchProgress::~WatchProgress() {
  if (reader_.joinable()) reader_.join();
}

void WatchProgress::begin(const WatchdogOptions& options, std::function<void(const std::string&)> end) {
  std::lock_guard lock(common_.mutex);
  options_ = options;
  end_ = std::move(end);
  judged_at_ = judged_from_ = heard_up_ = now_seconds();
  still_since_.reset(), report_.reset();
}

void WatchProgress::judge(bool ending) {
  const double now = now_seconds(), gap = judged_at_ > 0 ? now - judged_at_ : 0;
  judged_at_ = now;
  if (gap > gap_seconds) judged_from_ = now;
  if (common_.rank == 0) note_awaited(now, gap);
  if (!options_.on || ending || common_.lost >= 0) return;
  if (common_.rank == 0) {
    if (report_) return end_report_when_read();
    const double still = seconds_still();
    const Note own = common_.whereabouts.note();
    const bool in_program = std::ranges::any_of(common_.members, [](const WatchMember& m) { return !m.note.work.program.empty(); });
    const double limit = watchdog_limit(options_, own.work.longest_step, in_program || !own.work.program.empty());
    if (still >= limit && !still_since_) {
      begin_report(still, limit);
    } else if (still < limit && still_since_) {
      lines_.push_back({fmt::format("the run continues after {:.0f} s in which no rank had moved", now - *still_since_), "", false});
      still_since_.reset();
    }
  } else {
    judge_root();
  }
}

/// While this rank stands still, once a second: whom the notes say that the others wait for.
void WatchProgress::note_awaited(double now, double gap) {
  if (gap > gap_seconds) {
    awaited_.add_own_stop(now, gap);
    awaited_at_ = now;
    return;
  }
  if (now - awaited_at_ < awaited_look_seconds) return;
  const double seconds = std::min(now - std::exchange(awaited_at_, now), 2 * awaited_look_seconds);
  const Note own = common_.whereabouts.note();
  if (own.work.step == 0 || std::max(own.work.still, longest_wait(own)) < awaited_look_seconds) return;
  awaited_.add(now, seconds, awaited_ranks(common_.notes(silent_seconds)));
}

AwaitedRanks WatchProgress::awaited_since(double begin) {
  std::lock_guard lock(common_.mutex);
  AwaitedRanks awaited = awaited_.since(begin);
  if (!awaited.ranks.empty()) awaited.names = name_ranks(awaited.ranks, common_.plan.hosts);
  return awaited;
}

std::vector<Spent> WatchProgress::spent_of_ranks() {
  std::lock_guard lock(common_.mutex);
  std::vector<Spent> all;
  for (std::size_t r = 0; r < common_.members.size(); ++r)
    all.push_back(r == 0 ? common_.whereabouts.note().work.spent : common_.members[r].note.work.spent);
  return all;
}

/// Of all ranks the one that moved last; by a note that came before, it has not moved since.
double WatchProgress::seconds_still() const {
  const double now = now_seconds();
  double least = now - judged_from_;
  for (std::size_t r = 0; r < common_.members.size(); ++r) {
    const WatchMember& m = common_.members[r];
    if (m.ended || !m.reached) continue;
    const double still = r == 0 ? common_.whereabouts.note().work.still : m.note.work.still;
    if (still >= 0) least = std::min(least, still + (r == 0 ? 0 : now - m.heard));
  }
  return least;
}

void WatchProgress::compare_ranks() {
  if (!options_.on) return;
  const Spent own = common_.whereabouts.note().work.spent;
  std::vector<const Spent*> ranks;
  for (std::size_t r = 0; r < common_.members.size(); ++r) {
    const Spent& spent = r == 0 ? own : common_.members[r].note.work.spent;
    ranks.push_back(spent.steps > 0 ? &spent : nullptr);
  }
  for (Straggler& found : stragglers_.judge(ranks, now_seconds())) {
    found.host = common_.host(found.rank);
    slow_.push_back(std::move(found));
    slow_found_ = true;
  }
}

std::vector<Straggler> WatchProgress::take_stragglers() {
  if (!slow_found_) return {};
  std::lock_guard lock(common_.mutex);
  slow_found_ = false;
  return std::exchange(slow_, {});
}

void WatchProgress::begin_report(double still, double limit) {
  report_ = Report{.begun = now_seconds(),
                   .still = still,
                   .limit = limit,
                   .run = describe_still(common_.notes(silent_seconds), common_.plan.hosts),
                   .stacks = {}};
  still_since_ = now_seconds() - still;
  for (std::size_t i = 0; i < std::min(report_->run.awaited.size(), most_stacks); ++i) look_at(report_->run.awaited[i]);
}

/// Asks a rank of the same node, the next that answers.
void WatchProgress::look_at(int rank) {
  const std::vector<RankNote> all = common_.notes(silent_seconds);
  const auto at = [](int r) { return static_cast<std::size_t>(r); };
  for (int next = (rank + 1) % common_.plan.tree.ranks(); next != rank; next = (next + 1) % common_.plan.tree.ranks()) {
    if (common_.plan.leaders[at(next)] != common_.plan.leaders[at(rank)] || !all[at(next)].answered || all[at(next)].ended) continue;
    report_->stacks[rank] = "";
    return common_.send_to(next, MessageKind::look, fmt::format("{} {}", next, rank));
  }
  report_->stacks[rank] = "\n  not read: no other rank of its node answers";
}

void WatchProgress::read_stacks_of(int rank) {
  if (rank < 0 || rank >= common_.plan.tree.ranks()) return;
  to_read_.push_back(rank);
  if (reading_ >= 0) return;
  if (reader_.joinable()) reader_.join();
  reading_ = std::exchange(to_read_.front(), to_read_.back()), to_read_.pop_back();
  // On a thread of its own: whoever is looked at may keep it waiting.
  reader_ = std::thread([this, process = common_.plan.processes[static_cast<std::size_t>(reading_)]] {
    pthread_setname_np(pthread_self(), "stacks");
    const std::string text = process.means_the_same_here()
                                 ? read_stacks(process.pid, read_seconds)
                                 : std::string("\n  not read: its process is in another PID namespace (its own container)");
    std::lock_guard lock(common_.mutex);
    read_ = text.substr(0, most_text);
    common_.wake();
  });
}

void WatchProgress::send_stacks_that_were_read() {
  if (!read_) return;
  const int rank = std::exchange(reading_, -1);
  const std::string text = *std::exchange(read_, std::nullopt);
  reader_.join();
  if (common_.rank != 0 && rank == 0) {  // rank 0 itself does not answer: this rank speaks
    if (report_) report_->stacks[0] = text;
  } else {
    common_.send_up(MessageKind::stacks, fmt::format("{}\n{}", rank, text));
  }
  if (!to_read_.empty()) {
    const int next = to_read_.back();
    to_read_.pop_back();
    read_stacks_of(next);
  }
}

void WatchProgress::take_stacks(const std::string& text) {
  const std::size_t end = text.find('\n');
  if (!report_ || end == text.npos) return;
  if (const auto found = report_->stacks.find(std::atoi(text.c_str())); found != report_->stacks.end())
    found->second = text.substr(end + 1);
}

void WatchProgress::end_report_when_read() {
  const bool open = std::ranges::any_of(report_->stacks, [](const auto& stack) { return stack.second.empty(); });
  if (open && now_seconds() - report_->begun < report_seconds) return;
  const Report& r = *report_;
  std::string text =
      fmt::format("no rank has moved for {:.0f} s (watchdog.limit{}):{}\n{}", r.still,
                  options_.limit_seconds > 0 ? "" : fmt::format(", by the steps before {:.0f} s", r.limit), r.run.table, r.run.cause);
  for (const auto& [rank, stack] : r.stacks)
    text += fmt::format("\nstacks of rank {} on {}, process {}:{}", rank, common_.host(rank),
                        common_.plan.processes[static_cast<std::size_t>(rank)].pid, stack.empty() ? "\n  not read in time" : stack);
  lines_.push_back({text, fmt::format("no rank has moved for {:.0f} s: {}; run again to resume", r.still, r.run.cause)});
  report_.reset();
}

/// The lowest rank below rank 0 looks whether that one answers; the others below know as little of the rest.
void WatchProgress::judge_root() {
  if (common_.plan.tree.children(0).front() != common_.rank || common_.links.up.socket() < 0) return;
  if (report_) return end_report_when_read();
  const double now = now_seconds(), silent = std::min(now - heard_up_, now - judged_from_);
  const Note own = common_.whereabouts.note();
  const double limit = watchdog_limit(options_, own.work.longest_step, !own.work.program.empty());
  if (silent < limit) {
    still_since_.reset();
  } else if (!still_since_ && own.work.still >= limit) {
    const std::vector<RankNote> known{{0, false, false, silent, {}}, {common_.rank, true, false, 0, own}};
    report_ = Report{.begun = now, .still = silent, .limit = limit, .run = describe_still(known, common_.plan.hosts), .stacks = {}};
    still_since_ = now - silent;
    report_->stacks[0] = "";
    if (common_.plan.leaders[static_cast<std::size_t>(common_.rank)] == 0)
      read_stacks_of(0);
    else
      report_->stacks[0] = "\n  not read: rank 0 is on another node";
  }
}

}  // namespace tessera
