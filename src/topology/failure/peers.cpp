#include "topology/failure/peers.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/end_report.hpp"
#include "topology/failure/floor.hpp"
#include "topology/failure/peer_file.hpp"
#include "topology/failure/watch.hpp"

namespace tessera {
namespace {

// The process's own, as its signals are.
std::atomic<const Peers*> g_watched{nullptr};
std::atomic<int> g_own_rank{0};

/// A line made in a handler, where printf may not be called.
class Line {
 public:
  void add(std::string_view part) {
    part = part.substr(0, sizeof text_ - size_);
    std::copy(part.begin(), part.end(), text_ + size_);
    size_ += part.size();
  }
  void add(int number) {
    char digits[16];
    add({digits, static_cast<std::size_t>(std::to_chars(digits, std::end(digits), number).ptr - digits)});
  }
  bool write_out() const { return write(STDERR_FILENO, text_, size_) == static_cast<ssize_t>(size_); }

 private:
  char text_[256];
  std::size_t size_ = 0;
};

[[noreturn]] void leave_over(const Peers& peers, int lost) {
  constexpr int status = static_cast<int>(ExitCode::lost);
  if (!peers.become_speaker(status)) {  // MPI gives up on many ranks at once: one says it for all
    leave_end_report_to_others();
    _exit(peers.first_status(status));
  }
  report_end(status);
  Line line;
  line.add("tessera: rank ");
  line.add(g_own_rank.load());
  line.add(": error: the process of rank ");
  line.add(lost);
  line.add(
      " has ended, and MPI gave up because of it. Its own last lines, or the kernel's log if memory ran out, show the reason; run again to "
      "resume.\n");
  const bool written = line.write_out();
  peers.has_spoken();
  _exit(written ? status : static_cast<int>(ExitCode::internal));
}

/// In the middle of abort(): nothing may be locked or allocated here. Returns when no lost rank is found. Not inlined: see on_abort.
[[gnu::noinline]] void look_for_lost_rank() {
  constexpr int tries = 50, pause_milliseconds = 10;  // a process is gone a little later than its memory
  if (const Peers* peers = g_watched.load()) peers->mark_aborting();
  for (int i = 0; i < tries; ++i) {
    const Peers* peers = g_watched.load();  // again: the run may come to its end meanwhile
    if (!peers) return;
    if (const std::optional<int> lost = peers->lost_rank()) leave_over(*peers, *lost);
    poll(nullptr, 0, pause_milliseconds);
  }
}

/// abort() sends the signal to its own thread. One from elsewhere asks for this process's end and has no cause to look for; it may also
/// find the stack pointer inside a block of the heap (see signals.hpp), so its way uses little stack.
void on_abort(int, siginfo_t* info, void*) {
  if (info->si_code == SI_TKILL && info->si_pid == getpid()) look_for_lost_rank();
  signal(SIGABRT, SIG_DFL);
  raise(SIGABRT);  // blocked in here: it ends the process on return, where the core shows what was interrupted
}

}  // namespace

void explain_aborts(const Peers* peers, int rank) {
  g_own_rank = rank;
  g_watched = peers;
  struct sigaction action = {};
  sigemptyset(&action.sa_mask);
  action.sa_flags = peers ? SA_SIGINFO : 0;
  if (peers)
    action.sa_sigaction = on_abort;
  else
    action.sa_handler = SIG_DFL;
  sigaction(SIGABRT, &action, nullptr);  // fails for wrong arguments only
}

Peers::Peers(MPI_Comm node, int world_rank) {
  struct Entry {
    ProcessName process;
    int world_rank;
  };
  int local_ranks = 0;
  Entry mine{ProcessName::own(), world_rank};
  MPI_CHECK(MPI_Comm_size(node, &local_ranks));
  MPI_CHECK(MPI_Comm_rank(node, &own_));
  std::vector<Entry> all(static_cast<std::size_t>(local_ranks));
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_CHECK(MPI_Iallgather(&mine, sizeof(Entry), MPI_BYTE, all.data(), sizeof(Entry), MPI_BYTE, node, &request));
  complete(request);
  for (const Entry& entry : all) {
    const bool watched = static_cast<int>(world_ranks_.size()) != own_ && entry.process.means_the_same_here();
    world_ranks_.push_back(entry.world_rank);
    descriptors_.push_back(watched ? static_cast<int>(syscall(SYS_pidfd_open, entry.process.pid, 0)) : -1);
  }
  // All are alive now, so none of the numbers has gone to another process meanwhile.
  MPI_CHECK(MPI_Ibarrier(node, &request));
  complete(request);
}

Peers::~Peers() {
  for (int descriptor : descriptors_)
    if (descriptor >= 0) close(descriptor);
}

Peers& Peers::operator=(Peers&& other) noexcept {
  std::swap(world_ranks_, other.world_ranks_);
  std::swap(descriptors_, other.descriptors_);
  std::swap(own_, other.own_);
  std::swap(floor_, other.floor_);
  std::swap(aborting_, other.aborting_);
  std::swap(watch_, other.watch_);
  std::swap(lost_, other.lost_);
  return *this;
}

bool Peers::has_ended(int local_rank) const {
  pollfd watched{descriptors_[static_cast<std::size_t>(local_rank)], POLLIN, 0};
  return watched.fd >= 0 && poll(&watched, 1, 0) == 1;
}

bool Peers::become_speaker(int status) const {
  constexpr double patience_seconds = 2.5;  // with one that says nothing
  const auto ended = [this](int local_rank) { return has_ended(local_rank); };
  if (floor_ && !floor_->take(own_, status, ended, patience_seconds)) return false;
  if (!watch_ || watch_->become_speaker(status)) return true;
  if (floor_) floor_->said();  // by a rank of another node
  return false;
}

void Peers::has_spoken() const {
  if (watch_) watch_->has_spoken();  // first: those of this node may end now, and their launcher us
  if (floor_) floor_->said();
}

int Peers::first_status(int fallback) const {
  const int first = floor_ ? floor_->status() : 0;
  return first ? first : fallback;
}

void Peers::mark_aborting() const {
  if (aborting_) aborting_[own_].store(true);
}

std::optional<int> Peers::lost_rank() const {
  // In this order: a rank marks itself before it ends.
  for (std::size_t r = 0; aborting_ && r < world_ranks_.size(); ++r)
    if (has_ended(static_cast<int>(r)) && !aborting_[r].load()) return world_ranks_[r];
  const int lost = lost_ ? lost_->load() : -1;
  if (lost >= 0 && std::ranges::find(world_ranks_, lost) == world_ranks_.end()) return lost;
  return std::nullopt;
}

std::optional<int> Peers::unexpected_end() const {
  if (lost_ && lost_->load() >= 0) return lost_->load();
  return std::nullopt;
}

void Peers::set_watch(Watch* watch) {
  lost_ = watch ? &watch->lost() : nullptr;
  watch_ = watch;
}

Whereabouts* Peers::whereabouts() const { return watch_ ? &watch_->whereabouts() : nullptr; }

std::string Peers::name(int world_rank) const {
  return watch_ ? fmt::format("rank {} on {}", world_rank, watch_->host(world_rank)) : fmt::format("rank {}", world_rank);
}

std::optional<int> Peers::ended_rank() const {
  if (const std::optional<int> lost = lost_rank()) return lost;
  if (const std::optional<int> lost = unexpected_end()) return lost;
  for (std::size_t r = 0; r < world_ranks_.size(); ++r)
    if (has_ended(static_cast<int>(r))) return world_ranks_[r];
  return std::nullopt;
}

}  // namespace tessera
