#include "topology/communicators/rounds.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <utility>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "topology/failure/patience.hpp"
#include "topology/failure/watch.hpp"
#include "topology/world_handles.hpp"

namespace tessera {
namespace {

constexpr int spins_with_own_core = 2000;  // tens of microseconds: longer than peers differ in a step's small sums
constexpr double sleep_seconds = 0.25, check_after_seconds = 0.2;

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t seen) {
  timespec limit{0, static_cast<long>(sleep_seconds * 1e9)};
  // Woken, changed before, interrupted or out of time: the caller looks again in every case.
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void futex_wake_all(std::atomic<std::uint32_t>& word) { syscall(SYS_futex, &word, FUTEX_WAKE, 1 << 30, nullptr, nullptr, 0); }

bool reached(std::uint32_t arrived, std::uint32_t target) { return static_cast<std::int32_t>(arrived - target) >= 0; }

int cores_allowed() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace

std::string_view name_of(CallKind kind) {
  constexpr std::string_view names[] = {"all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all", "rotate", "barrier"};
  return names[static_cast<int>(kind)];
}

bool RoundCall::matches(const RoundCall& other) const {
  return kind == other.kind && dtype == other.dtype && reduction == other.reduction && root == other.root && count == other.count &&
         (kind != CallKind::rotate || stride == other.stride);
}

std::string RoundCall::describe() const {
  if (kind == CallKind::barrier) return "barrier";
  std::string text = fmt::format("{} of {} {}", name_of(kind), count, name_of(dtype));
  if (kind == CallKind::all_reduce && reduction == Reduction::max) text += " (maximum)";
  if (kind == CallKind::rotate) text += fmt::format(" by {}", stride);
  if (kind == CallKind::broadcast) text += fmt::format(" from rank {}", root);
  return text;
}

std::size_t Rounds::bytes(int size, std::size_t window_bytes) {
  return static_cast<std::size_t>(round_up(static_cast<std::int64_t>(sizeof(Head) + sizeof(Seat) * static_cast<std::size_t>(size)), 4096)) +
         static_cast<std::size_t>(size) * 2 * window_bytes;
}

Rounds::Rounds(Mapping block, std::size_t window_bytes, const Node& node, std::vector<int> members, int rank, std::string label,
               double timeout_seconds)
    : block_(std::move(block)),
      window_bytes_(window_bytes),
      node_(node),
      members_(std::move(members)),
      rank_(rank),
      label_(std::move(label)),
      timeout_seconds_(timeout_seconds) {
  // A zeroed page is a valid Head and Seat: atomics at 0, no call yet.
  int local_ranks = node.world().place().local_ranks;
  // Ranks that the launcher bound have a share of the node each, others share what they are allowed.
  bool own_core = cores_allowed() >= local_ranks || cores_allowed() * local_ranks <= sysconf(_SC_NPROCESSORS_ONLN);
  spins_ = own_core ? spins_with_own_core : 0;
}

std::byte* Rounds::window_of(int rank, std::uint32_t round) const {
  std::byte* windows = block_.data() + block_.bytes() - members_.size() * 2 * window_bytes_;
  return windows + (static_cast<std::size_t>(rank) * 2 + (round & 1)) * window_bytes_;
}

void Rounds::begin(const RoundCall& call) {
  call_ = call;
  ++calls_;
}

void Rounds::pass() {
  std::uint32_t round = round_ + 1, size = static_cast<std::uint32_t>(members_.size());
  Seat& mine = seat(rank_);
  mine.calls[round & 1] = call_;
  mine.round.store(round, std::memory_order_release);
  // Sequentially consistent with the sleepers' own two steps (count in, then look): either we see the sleeper or it sees our arrival.
  std::uint32_t target = round * size, arrived = head().arrived.fetch_add(1) + 1;
  if (arrived == target) {
    if (head().sleepers.load() > 0) futex_wake_all(head().arrived);
  } else {
    for (int spin = 0; spin < spins_ && !reached(head().arrived.load(std::memory_order_acquire), target); ++spin) pause_briefly();
    if (!reached(head().arrived.load(std::memory_order_acquire), target)) sleep_until_complete(target);
  }
  round_ = round;
  for (int r = 0; r < static_cast<int>(size); ++r)
    if (!call(r).matches(call_))
      fail(ExitCode::internal,
           "the ranks call different collectives ({}): rank {} calls {} and rank {} calls {}. The schedules differ; this is a defect of "
           "Tessera unless the ranks run different binaries.",
           where(), rank_, call_.describe(), r, call(r).describe());
}

void Rounds::sleep_until_complete(std::uint32_t target) {
  double checked = now_seconds();
  Patience patience;
  LongWait lasting(node_.world().handles().peers.whereabouts());
  head().sleepers.fetch_add(1);
  struct Leave {
    std::atomic<std::uint32_t>& sleepers;
    ~Leave() { sleepers.fetch_sub(1); }
  } leave{head().sleepers};
  for (std::uint32_t seen = head().arrived.load(); !reached(seen, target); seen = head().arrived.load()) {
    if (aborted_->load()) fail(ExitCode::lost, "{} was abandoned because another lane of this rank has failed", what());
    futex_wait(head().arrived, seen);
    const double now = now_seconds(), waited = patience.waited(now);
    if (now - checked < check_after_seconds) continue;
    checked = now;
    lasting.lasts(waited, [this] { return what(); });
    if (!reached(head().arrived.load(), target)) check_waiting(waited);
  }
}

void Rounds::check_waiting(double waited_seconds) const {
  std::string missing;
  for (int r = 0; r < size(); ++r) {
    if (reached(seat(r).round.load(std::memory_order_acquire), round_ + 1)) continue;
    if (node_.has_ended(members_[static_cast<std::size_t>(r)]))
      fail(ExitCode::lost,
           "the process of rank {} has ended while rank {} waited for it in {} ({}). Its own last lines, or the kernel's log if it ran out "
           "of memory, show the reason; run again to resume.",
           r, rank_, call_.describe(), where());
    missing += fmt::format("{}{}", missing.empty() ? "" : ", ", r);
  }
  if (waited_seconds > timeout_seconds_)
    fail(ExitCode::lost, "rank {} of {} waited {:.0f} s in {}: rank {} did not arrive; {}", rank_, size(), waited_seconds, what(), missing,
         explain_wait(&node_.world().handles().peers, what()));
}

const std::byte* Rounds::resolve(int peer) const { return node_.resolve(members_[static_cast<std::size_t>(peer)], call(peer).location); }

std::string Rounds::where() const { return fmt::format("{}, call {}", label_, calls_); }

}  // namespace tessera
