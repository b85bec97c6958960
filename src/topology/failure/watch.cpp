#include "topology/failure/watch.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/end_report.hpp"
#include "base/log.hpp"
#include "topology/failure/leave.hpp"

namespace tessera {
namespace {

constexpr int look_milliseconds = 250;

/// Between a rank's notes: rank 0 reads those of some thousand ranks a second.
double note_seconds(int ranks) { return 1 + ranks / 8192; }

/// The one process that may look at this one's stacks where the system allows that to none else (Yama): of the node's next rank.
void let_next_rank_look(const WatchPlan& plan) {
  const auto at = [&](int rank) { return static_cast<std::size_t>(rank); };
  int next = plan.rank;
  do next = (next + 1) % static_cast<int>(plan.leaders.size());
  while (plan.leaders[at(next)] != plan.leaders[at(plan.rank)]);
  // Where the kernel has no Yama the call fails, and is not needed.
  if (next != plan.rank && plan.processes[at(next)].means_the_same_here()) prctl(PR_SET_PTRACER, plan.processes[at(next)].pid, 0, 0, 0);
}

}  // namespace

Watch::Watch(WatchPlan plan, WatchLinks links, std::vector<int> unreached)
    : common_(std::move(plan), std::move(links), [this](int from, const Message& message) { handle(from, message); }),
      floor_(common_, [this] { read_links(); }),
      questions_(common_, std::ranges::find(unreached, common_.rank) == unreached.end()),
      progress_(common_) {
  if (common_.rank == 0)
    for (const int rank : unreached) common_.members[static_cast<std::size_t>(rank)].reached = false;
  let_next_rank_look(common_.plan);
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "watch");
    floor_.begins_thread();
    loop();
  });
}

Watch::~Watch() {
  {
    std::lock_guard lock(common_.mutex);
    stopping_ = true;
    for (std::size_t i = 0; i < common_.link_count(); ++i) common_.link(i).send(MessageKind::bye);
  }
  common_.wake();
  thread_.join();
  prctl(PR_SET_PTRACER, 0, 0, 0, 0);
}

void Watch::loop() {
  while (true) {
    wait_for_events();
    std::vector<WatchLine> lines;
    std::optional<std::pair<int, std::string>> last_words;
    std::function<void(const std::string&)> end;
    {
      std::lock_guard lock(common_.mutex);
      if (stopping_) return;
      if (const std::optional<int> status = floor_.leaves_with()) {
        leave_end_report_to_others();
        leave_now(static_cast<ExitCode>(*status));
      }
      read_links();
      floor_.serve();
      note_regularly();
      questions_.end_when_answered();
      progress_.send_stacks_that_were_read();
      progress_.judge(floor_.ending());
      lines = progress_.take_lines();
      last_words = floor_.take_last_words();
      end = progress_.end();
    }
    if (last_words) report_end(last_words->first), log_line(LogLevel::error, last_words->second);
    for (const WatchLine& line : lines) {
      log_line(line.warns ? LogLevel::warning : LogLevel::info, line.text);
      if (end && line.warns) end(line.cause);
    }
  }
}

void Watch::note_regularly() {
  if (now_seconds() - noted_at_ < note_seconds(common_.plan.tree.ranks())) return;
  noted_at_ = now_seconds();
  if (common_.rank != 0) common_.send_note();
  for (Link& child : common_.links.down) child.send(MessageKind::pulse);
  if (common_.rank == 0) progress_.compare_ranks();
}

void Watch::wait_for_events() {
  std::vector<pollfd> watched{{common_.wakes(), POLLIN, 0}};
  {
    std::lock_guard lock(common_.mutex);
    for (std::size_t i = 0; i < common_.link_count(); ++i)  // a negative descriptor is passed over
      watched.push_back({common_.link(i).socket(), static_cast<short>(POLLIN | (common_.link(i).unsent() ? POLLOUT : 0)), 0});
  }
  poll(watched.data(), watched.size(), look_milliseconds);
  std::uint64_t count = 0;
  if (read(common_.wakes(), &count, sizeof count) < 0) return;  // nobody woke us: time, or a link
}

void Watch::read_links() {
  for (std::size_t i = 0; i < common_.link_count(); ++i) {
    if (common_.link(i).socket() < 0) continue;
    common_.link(i).flush();
    std::vector<Message> messages;
    const bool open = common_.link(i).receive(messages);
    bool goodbye = false;
    for (const Message& message : messages) {
      goodbye = goodbye || message.kind == MessageKind::bye;
      handle(common_.neighbour(i), message);
    }
    if (i == common_.links.down.size() && !messages.empty()) progress_.heard_up();
    if (!open || goodbye) {
      common_.link(i).close();
      link_ended(common_.neighbour(i), goodbye);
    }
  }
}

void Watch::handle(int from, const Message& message) {
  int first = -1, second = -1;  // most texts begin with numbers
  std::sscanf(message.text.c_str(), "%d %d", &first, &second);
  const bool mine = common_.rank == 0;  // what goes up ends with rank 0, the others pass it on
  switch (message.kind) {
    case MessageKind::note:
      mine ? questions_.take_note(message.text) : common_.send_up(message.kind, message.text);
      break;
    case MessageKind::tell:
      common_.send_down(message.kind, message.text);
      if (common_.rank != 0) common_.send_note();
      break;
    case MessageKind::ask:
      mine ? questions_.ask_all(first) : common_.send_up(message.kind, message.text);
      break;
    case MessageKind::notes:
      if (first != common_.rank) return common_.send_to(first, message.kind, message.text);
      questions_.take_answer(message.text.substr(message.text.find('\n') + 1));
      break;
    case MessageKind::floor:
      mine ? floor_.grant(first, second) : common_.send_up(message.kind, message.text);
      break;
    case MessageKind::ending:
      common_.send_down(message.kind, message.text);
      floor_.run_ends(first, second);
      break;
    case MessageKind::said:
      // What comes from below is known on the way up, so the speaker's end is no loss there.
      mine || from == common_.plan.tree.parent(common_.rank) ? floor_.take_said() : floor_.pass_said_up(message.text);
      break;
    case MessageKind::lost:
      if (!floor_.ending()) tell_lost(first, from);
      break;
    case MessageKind::gone:
      if (!mine) return common_.send_up(message.kind, message.text);
      common_.members[static_cast<std::size_t>(first)].ended = true;
      floor_.pass_on(first);
      break;
    case MessageKind::look:
      first == common_.rank ? progress_.read_stacks_of(second) : common_.send_to(first, message.kind, message.text);
      break;
    case MessageKind::stacks:
      mine ? progress_.take_stacks(message.text) : common_.send_up(message.kind, message.text);
      break;
    case MessageKind::bye:
    case MessageKind::pulse:
      break;
  }
}

void Watch::tell_lost(int rank, int from) {
  // Before others learn of it and end the run.
  if (common_.rank == 0 && rank > 0 && common_.lost < 0)
    if (const WatchMember& member = common_.members[static_cast<std::size_t>(rank)]; member.heard > 0)
      log_line(LogLevel::warning, fmt::format("rank {} on {} was lost {:.1f} s after its last report: {}", rank, common_.host(rank),
                                              now_seconds() - member.heard, member.note.describe()));
  int none = -1;
  if (!common_.lost.compare_exchange_strong(none, rank)) return;  // the first one: others may have ended over it
  for (std::size_t i = 0; i < common_.link_count(); ++i)
    if (common_.neighbour(i) != from) common_.link(i).send(MessageKind::lost, std::to_string(rank));
}

void Watch::link_ended(int from, bool goodbye) {
  const int parent = common_.plan.tree.parent(common_.rank);
  if (from != parent)
    common_.send_up(MessageKind::gone, std::to_string(from));
  else
    floor_.cut_off(from == 0);
  if (!goodbye && !floor_.ending()) tell_lost(from, from);
  questions_.link_ended();
}

}  // namespace tessera
