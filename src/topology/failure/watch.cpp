#include "topology/failure/watch.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/end_report.hpp"
#include "base/log.hpp"
#include "topology/failure/leave.hpp"

namespace tessera {
namespace {

constexpr double note_seconds = 1;        // between the notes that rank 0 keeps
constexpr double question_seconds = 1.5;  // for the ranks' answers, and twice that for rank 0's
constexpr double floor_seconds = 2;       // for rank 0's word about who speaks
constexpr double leave_seconds = 1.5;     // from the word that the run ends to the end of this process
constexpr int look_milliseconds = 250;

}  // namespace

Watch::Watch(int rank, std::vector<std::string> hosts, std::vector<Link> links)
    : rank_(rank), hosts_(std::move(hosts)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), links_(std::move(links)) {
  if (wake_ < 0) fail(ExitCode::environment, "no eventfd for the watch over the ranks");
  members_.resize(hosts_.size());
  for (Member& member : members_) member.heard = now_seconds();
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "watch");
    loop();
  });
}

Watch::~Watch() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    for (Link& link : links_) link.send(MessageKind::bye);
  }
  wake();
  thread_.join();
  ::close(wake_);
}

void Watch::wake() const {
  const std::uint64_t one = 1;
  if (write(wake_, &one, sizeof one) < 0) return;  // full: it is awake already
}

void Watch::loop() {
  while (true) {
    wait_for_events();
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    if (leave_at_ && now_seconds() > *leave_at_) {
      leave_end_report_to_others();
      leave_now(static_cast<ExitCode>(status_));
    }
    read_links();
    if (rank_ != 0 && now_seconds() - noted_at_ > note_seconds) {
      noted_at_ = now_seconds();
      links_[0].send(MessageKind::note, whereabouts_.note().print());
    }
    end_question_when_answered();
  }
}

void Watch::wait_for_events() {
  std::vector<pollfd> watched{{wake_, POLLIN, 0}};
  {
    std::lock_guard lock(mutex_);
    for (const Link& link : links_)  // a negative descriptor is passed over
      watched.push_back({link.socket(), static_cast<short>(POLLIN | (link.unsent() ? POLLOUT : 0)), 0});
  }
  poll(watched.data(), watched.size(), look_milliseconds);
  std::uint64_t count = 0;
  if (read(wake_, &count, sizeof count) < 0) return;  // nobody woke us: time, or a link
}

void Watch::read_links() {
  for (std::size_t i = 0; i < links_.size(); ++i) {
    if (links_[i].socket() < 0) continue;
    links_[i].flush();
    std::vector<Message> messages;
    const bool open = links_[i].receive(messages);
    bool goodbye = false;
    for (const Message& message : messages) {
      goodbye = goodbye || message.kind == MessageKind::bye;
      handle(rank_of(i), message);
    }
    if (!open || goodbye) {
      links_[i].close();
      link_ended(rank_of(i), goodbye);
    }
  }
}

void Watch::handle(int from, const Message& message) {
  Member& member = members_[static_cast<std::size_t>(from)];
  switch (message.kind) {
    case MessageKind::note:
      member.note = Note::parse(message.text);
      member.heard = now_seconds();
      member.asked = false;
      break;
    case MessageKind::tell:
      links_[0].send(MessageKind::note, whereabouts_.note().print());
      break;
    case MessageKind::ask:
      askers_.insert(from);
      begin_question();
      break;
    case MessageKind::notes:
      notes_ = message.text;
      answered_.notify_all();
      break;
    case MessageKind::floor:
      grant_floor(from, std::atoi(message.text.c_str()));
      break;
    case MessageKind::ending:
      leave_after_others(std::atoi(message.text.c_str()));
      [[fallthrough]];
    case MessageKind::silent:
    case MessageKind::speak:
      ending_ = true;
      may_speak_ = message.kind == MessageKind::speak;
      answered_.notify_all();
      break;
    case MessageKind::lost:
      if (!ending_) tell_lost(std::atoi(message.text.c_str()));
      break;
    case MessageKind::bye:
      break;
  }
}

void Watch::link_ended(int from, bool goodbye) {
  members_[static_cast<std::size_t>(from)].ended = true;
  if (!goodbye && !ending_) tell_lost(from);
  answered_.notify_all();  // rank 0 gives no answer any more
}

void Watch::tell_lost(int rank) {
  int none = -1;
  lost_.compare_exchange_strong(none, rank);  // the first one: others may have ended over it
  if (rank_ != 0) return;
  for (Link& link : links_) link.send(MessageKind::lost, std::to_string(lost_.load()));
}

void Watch::begin_question() {
  if (askers_.size() > 1) return;  // it is under way
  asked_at_ = now_seconds();
  for (std::size_t r = 1; r < links_.size(); ++r) {
    members_[r].asked = links_[r].socket() >= 0;
    links_[r].send(MessageKind::tell);
  }
}

void Watch::end_question_when_answered() {
  if (askers_.empty()) return;
  const bool open = std::ranges::any_of(members_, [](const Member& m) { return m.asked && !m.ended; });
  if (open && now_seconds() - asked_at_ < question_seconds) return;
  std::vector<RankNote> notes;
  for (std::size_t r = 0; r < members_.size(); ++r) {
    const Member& m = members_[r];
    const bool answered = r == 0 || (!m.asked && links_[r].socket() >= 0);
    notes.push_back({static_cast<int>(r), answered, m.ended, now_seconds() - m.heard, r == 0 ? whereabouts_.note() : m.note});
  }
  const std::string text = print_notes(notes);
  for (int asker : askers_)
    if (asker != 0) links_[static_cast<std::size_t>(asker)].send(MessageKind::notes, text);
  if (askers_.contains(0)) notes_ = text;
  askers_.clear();
  answered_.notify_all();
}

std::string Watch::explain(const std::string& wait) {
  std::unique_lock lock(mutex_);
  if (rank_ != 0 && links_[0].socket() < 0) return "nothing is known of the other ranks, since rank 0 could not be reached at the start";
  notes_.reset();
  if (rank_ == 0) {
    askers_.insert(0);
    begin_question();
    wake();
  } else {
    links_[0].send(MessageKind::ask);
  }
  const auto limit = std::chrono::duration<double>(2 * question_seconds);
  answered_.wait_for(lock, limit, [this] { return notes_.has_value() || (rank_ != 0 && links_[0].socket() < 0); });
  if (notes_) return explain_wait(parse_notes(*notes_), hosts_, wait);
  return fmt::format("rank 0 on {} does not answer: it is stopped, or its node hangs", hosts_[0]);
}

/// Who speaks ends all ranks. Where that does not reach this one, as with srun, it goes by itself.
void Watch::leave_after_others(int status) {
  status_ = status;
  leave_at_ = now_seconds() + leave_seconds;
}

void Watch::grant_floor(int rank, int status) {
  if (ending_) {
    if (rank != 0) links_[static_cast<std::size_t>(rank)].send(MessageKind::silent);
    return;
  }
  ending_ = true;
  for (std::size_t r = 1; r < links_.size(); ++r)
    links_[r].send(static_cast<int>(r) == rank ? MessageKind::speak : MessageKind::ending, std::to_string(status));
  may_speak_ = rank == 0;
  if (rank != 0) leave_after_others(status);
  answered_.notify_all();
}

bool Watch::take_floor(int status) {
  std::unique_lock lock(mutex_);
  if (rank_ == 0) {
    if (ending_) return false;
    grant_floor(0, status);
    return true;
  }
  if (ending_) return false;
  if (links_[0].socket() >= 0) {
    links_[0].send(MessageKind::floor, std::to_string(status));
    answered_.wait_for(lock, std::chrono::duration<double>(floor_seconds),
                       [this] { return may_speak_.has_value() || links_[0].socket() < 0; });
    if (may_speak_) return *may_speak_;
  }
  // Nobody can give the floor: the lower ranks first, whose word ends the others.
  lock.unlock();
  std::this_thread::sleep_for(std::chrono::milliseconds(100 * std::min(rank_ - 1, 20)));
  return true;
}

}  // namespace tessera
