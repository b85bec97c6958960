#include "topology/failure/watch.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
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
    : plan_(std::move(plan)), rank_(plan_.rank), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), links_(std::move(links)) {
  if (wake_ < 0) fail(ExitCode::environment, "no eventfd for the watch over the ranks");
  heard_up_ = now_seconds();
  cut_off_ = rank_ != 0 && links_.up.socket() < 0;
  if (rank_ == 0) members_.resize(plan_.hosts.size());
  for (Member& member : members_) member.heard = heard_up_;
  for (int rank : unreached) {
    if (rank_ == 0) members_[static_cast<std::size_t>(rank)].reached = false;
    if (rank == rank_) reached_ = false;
  }
  let_next_rank_look(plan_);
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "watch");
    thread_id_ = gettid();
    loop();
  });
}

Watch::~Watch() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    for (std::size_t i = 0; i < link_count(); ++i) link(i).send(MessageKind::bye);
  }
  wake();
  thread_.join();
  if (reader_.joinable()) reader_.join();
  prctl(PR_SET_PTRACER, 0, 0, 0, 0);
  ::close(wake_);
}

void Watch::wake() const {
  const std::uint64_t one = 1;
  if (write(wake_, &one, sizeof one) < 0) return;  // full: it is awake already
}

void Watch::loop() {
  while (true) {
    wait_for_events();
    std::vector<WatchLine> sayings;
    std::optional<std::string> last_words;
    std::function<void(const std::string&)> end;
    {
      std::lock_guard lock(mutex_);
      if (stopping_) return;
      if (leave_at_ && now_seconds() > *leave_at_) {
        leave_end_report_to_others();
        leave_now(static_cast<ExitCode>(status_));
      }
      read_links();
      serve_floor();
      note_regularly();
      end_question_when_answered();
      send_stacks_that_were_read();
      judge_progress();
      sayings.swap(sayings_);
      last_words.swap(last_words_);
      if (watchdog_.ends) end = end_;
    }
    if (last_words) report_end(status_), log_line(LogLevel::error, *last_words);
    for (const WatchLine& saying : sayings) {
      log_line(saying.warns ? LogLevel::warning : LogLevel::info, saying.text);
      if (end && saying.warns) end(saying.cause);
    }
  }
}

void Watch::note_regularly() {
  if (now_seconds() - noted_at_ < note_seconds(plan_.tree.ranks())) return;
  noted_at_ = now_seconds();
  if (rank_ != 0) send_up(MessageKind::note, fmt::format("{}\n{}", rank_, whereabouts_.note().print()));
  for (Link& child : links_.down) child.send(MessageKind::pulse);
  if (rank_ == 0 && watchdog_.on) compare_ranks();
}

void Watch::wait_for_events() {
  std::vector<pollfd> watched{{wake_, POLLIN, 0}};
  {
    std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < link_count(); ++i)  // a negative descriptor is passed over
      watched.push_back({link(i).socket(), static_cast<short>(POLLIN | (link(i).unsent() ? POLLOUT : 0)), 0});
  }
  poll(watched.data(), watched.size(), look_milliseconds);
  std::uint64_t count = 0;
  if (read(wake_, &count, sizeof count) < 0) return;  // nobody woke us: time, or a link
}

int Watch::neighbour(std::size_t i) const { return i < links_.down.size() ? plan_.tree.children(rank_)[i] : plan_.tree.parent(rank_); }

void Watch::read_links() {
  for (std::size_t i = 0; i < link_count(); ++i) {
    if (link(i).socket() < 0) continue;
    link(i).flush();
    std::vector<Message> messages;
    const bool open = link(i).receive(messages);
    bool goodbye = false;
    for (const Message& message : messages) {
      goodbye = goodbye || message.kind == MessageKind::bye;
      handle(neighbour(i), message);
    }
    if (i == links_.down.size() && !messages.empty()) heard_up_ = now_seconds();
    if (!open || goodbye) {
      link(i).close();
      link_ended(neighbour(i), goodbye);
    }
  }
}

void Watch::send_up(MessageKind kind, const std::string& text) {
  if (rank_ == 0)
    handle(0, {kind, text});
  else
    links_.up.send(kind, text);
}

void Watch::send_down(MessageKind kind, const std::string& text) {
  for (Link& child : links_.down) child.send(kind, text);
}

void Watch::send_to(int rank, MessageKind kind, const std::string& text) {
  if (rank == rank_) return handle(rank_, {kind, text});
  const std::vector<int>& children = plan_.tree.children(rank_);
  const auto found = std::ranges::lower_bound(children, plan_.tree.way_down(rank_, rank));
  if (found != children.end()) links_.down[static_cast<std::size_t>(found - children.begin())].send(kind, text);
}

void Watch::handle(int from, const Message& message) {
  int first = -1, second = -1;  // most texts begin with numbers
  std::sscanf(message.text.c_str(), "%d %d", &first, &second);
  const bool mine = rank_ == 0;  // what goes up ends with rank 0, the others pass it on
  switch (message.kind) {
    case MessageKind::note:
      mine ? take_note(message.text) : send_up(message.kind, message.text);
      break;
    case MessageKind::tell:
      send_down(message.kind, message.text);
      if (rank_ != 0) send_up(MessageKind::note, fmt::format("{}\n{}", rank_, whereabouts_.note().print()));
      break;
    case MessageKind::ask:
      mine ? ask_all(first) : send_up(message.kind, message.text);
      break;
    case MessageKind::notes:
      if (first != rank_) return send_to(first, message.kind, message.text);
      notes_ = message.text.substr(message.text.find('\n') + 1);
      answered_.notify_all();
      break;
    case MessageKind::floor:
      mine ? grant_floor(first, second) : send_up(message.kind, message.text);
      break;
    case MessageKind::ending:
      send_down(message.kind, message.text);
      run_ends(first, second);
      break;
    case MessageKind::said:
      // What comes from below is known on the way up, so the speaker's end is no loss there.
      mine || from == plan_.tree.parent(rank_) ? take_said() : (floor_ = Floor::said, send_up(message.kind, message.text));
      break;
    case MessageKind::lost:
      if (!ending()) tell_lost(first, from);
      break;
    case MessageKind::gone:
      if (!mine) return send_up(message.kind, message.text);
      members_[static_cast<std::size_t>(first)].ended = true;
      pass_floor_on(first);
      break;
    case MessageKind::look:
      first == rank_ ? read_stacks_of(second) : send_to(first, message.kind, message.text);
      break;
    case MessageKind::stacks:
      mine ? take_stacks(message.text) : send_up(message.kind, message.text);
      break;
    case MessageKind::bye:
    case MessageKind::pulse:
      break;
  }
}

void Watch::link_ended(int from, bool goodbye) {
  if (from != plan_.tree.parent(rank_)) send_up(MessageKind::gone, std::to_string(from));
  if (from == plan_.tree.parent(rank_)) {
    cut_off_ = true;
    if (from == 0 && speaker_ == 0 && floor_ == Floor::others) reopen_floor();
  }
  if (!goodbye && !ending()) tell_lost(from, from);
  answered_.notify_all();  // rank 0 may give no answer any more
}

}  // namespace tessera
