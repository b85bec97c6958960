#include "topology/failure/watch_floor.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "base/clock.hpp"

namespace tessera {
namespace {

constexpr double floor_seconds = 2;    // for rank 0's word about who speaks
constexpr double speak_seconds = 5;    // for the speaker to say why
constexpr double leave_seconds = 1.5;  // from the word that it has been said to the end of this process
constexpr double tell_seconds = 0.5;   // for the word that it has been said to leave this process

}  // namespace

WatchFloor::WatchFloor(WatchCommon& common, std::function<void()> read_links)
    : common_(common), read_links_(std::move(read_links)), cut_off_(common.rank != 0 && common.links.up.socket() < 0) {}

void WatchFloor::begins_thread() { thread_id_ = gettid(); }

void WatchFloor::pass_said_up(const std::string& text) {
  floor_ = Floor::said;
  common_.send_up(MessageKind::said, text);
}

void WatchFloor::cut_off(bool parent_is_root) {
  cut_off_ = true;
  if (parent_is_root && speaker_ == 0 && floor_ == Floor::others) reopen();
}

std::optional<int> WatchFloor::leaves_with() const {
  return leave_at_ && now_seconds() > *leave_at_ ? std::optional(status_) : std::nullopt;
}

std::optional<std::pair<int, std::string>> WatchFloor::take_last_words() {
  if (!last_words_) return {};
  return std::pair(status_, *std::exchange(last_words_, std::nullopt));
}

/// Who speaks ends all ranks. Where that does not reach this one, as with srun, it goes by itself.
void WatchFloor::leave_in(double seconds) {
  if (const double at = now_seconds() + seconds; !leave_at_ || at < *leave_at_) leave_at_ = at;
}

void WatchFloor::run_ends(int status, int speaker) {
  if (floor_ == Floor::said) return;
  if (speaker < 0) return reopen();
  speaker_ = speaker, status_ = status;
  floor_ = speaker == common_.rank ? Floor::mine : Floor::others;
  leave_at_.reset();
  if (speaker != common_.rank) leave_in(speak_seconds);
}

/// Rank 0 had the floor and was lost before it spoke: nobody is left to give it away.
void WatchFloor::reopen() {
  floor_ = Floor::open, leave_at_.reset();
  cut_off_ = true;
  common_.send_down(MessageKind::ending, "0 -1");
}

void WatchFloor::grant(int rank, int status) {
  if (common_.members[static_cast<std::size_t>(rank)].ended) return;
  if (ending()) {  // all have been told who speaks
    if (floor_ != Floor::said) next_speakers_.emplace_back(rank, status);
    return;
  }
  common_.send_down(MessageKind::ending, fmt::format("{} {}", status, rank));
  run_ends(status, rank);
}

void WatchFloor::pass_on(int ended) {
  std::erase_if(next_speakers_, [&](const auto& next) { return next.first == ended; });
  if (!ending() || floor_ == Floor::said || ended != speaker_) return;
  if (!next_speakers_.empty()) {
    const auto [rank, status] = next_speakers_.front();
    next_speakers_.erase(next_speakers_.begin());
    common_.send_down(MessageKind::ending, fmt::format("{} {}", status, rank));
    return run_ends(status, rank);
  }
  last_words_ = fmt::format("rank {} on {} ended the run with status {}, and was lost before it reported the reason", ended,
                            common_.host(ended), status_);
  take_said();
}

void WatchFloor::take_said() {
  floor_ = Floor::said;
  if (leave_at_) leave_in(leave_seconds);
  common_.send_down(MessageKind::said, "");
}

void WatchFloor::serve() {
  if (const int status = wanted_.load(); status != 0 && !asked_) {
    asked_ = true;
    common_.send_up(MessageKind::floor, fmt::format("{} {}", common_.rank, status));
  }
  if (!spoke_.load() || told_.load()) return;
  // Where this rank has spoken for want of an answer, those below it hear of it at least.
  if (cut_off_)
    take_said();
  else
    common_.send_up(MessageKind::said, "");
  floor_ = Floor::said, told_ = true;
}

/// On the watch's own thread, which ends a run that stands still, nobody else reads the links.
void WatchFloor::serve_own_thread() {
  if (thread_id_ != gettid()) return;
  std::unique_lock lock(common_.mutex, std::try_to_lock);  // a handler may have come upon it inside
  if (!lock) return;
  read_links_();
  serve();
}

bool WatchFloor::take(int status) {
  constexpr int pause_milliseconds = 2, step_milliseconds = 100;
  wanted_ = status;
  common_.wake();
  for (const double begin = now_seconds();; poll(nullptr, 0, pause_milliseconds)) {
    serve_own_thread();
    const Floor floor = floor_;
    if (floor == Floor::mine) return true;
    if (floor == Floor::said) return false;
    if (floor == Floor::others && now_seconds() - begin > speak_seconds) return false;
    if (floor == Floor::open && (cut_off_ || now_seconds() - begin > floor_seconds)) break;
  }
  // Nobody can give the floor: the lower ranks first, whose word ends the others. Where a rank between was lost, those that rank 0 still
  // reaches speak before.
  const int others_first = common_.plan.tree.parent(common_.rank) > 0 ? 1500 : 0;
  for (int left = others_first + 100 * std::min(std::max(common_.rank - 1, 0), 20); left > 0; left -= step_milliseconds) {
    if (floor_ == Floor::said) return false;
    poll(nullptr, 0, std::min(left, step_milliseconds));
  }
  return floor_ != Floor::said;
}

void WatchFloor::has_spoken() {
  spoke_ = true;
  common_.wake();
  for (const double begin = now_seconds(); !told_ && now_seconds() - begin < tell_seconds; poll(nullptr, 0, 1)) serve_own_thread();
}

}  // namespace tessera
