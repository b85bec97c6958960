#include "topology/peers.hpp"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>

namespace tessera {
namespace {

// The process's own, as its signals are.
std::atomic<const Peers*> g_watched{nullptr};
std::atomic<int> g_own_rank{0};

/// In the middle of abort(): nothing may be locked or allocated here.
void on_abort(int) {
  constexpr int tries = 50, pause_microseconds = 10000;  // a process is gone a little later than its memory
  for (int i = 0; i < tries; ++i) {
    const Peers* peers = g_watched.load();
    if (!peers) break;
    if (const std::optional<int> lost = peers->ended_rank()) {
      char text[256];
      const int length = std::snprintf(text, sizeof text,
                                       "tessera: rank %d: error: the process of rank %d has ended, and MPI gave up over it. Its own last "
                                       "lines, or the kernel's log when memory ran out, say why; run again to resume.\n",
                                       g_own_rank.load(), *lost);
      if (length > 0 && write(STDERR_FILENO, text, static_cast<std::size_t>(length)) != length) _exit(static_cast<int>(ExitCode::internal));
      _exit(static_cast<int>(ExitCode::environment));
    }
    usleep(pause_microseconds);
  }
  std::signal(SIGABRT, SIG_DFL);  // abort() raises it once more
}

}  // namespace

void explain_aborts(const Peers* peers, int rank) {
  g_own_rank = rank;
  g_watched = peers;
  std::signal(SIGABRT, peers ? on_abort : SIG_DFL);
}

Peers::Peers(MPI_Comm node) {
  struct Entry {
    pid_t pid;
    int world_rank;
  };
  int local_ranks = 0;
  Entry mine{getpid(), 0};
  MPI_CHECK(MPI_Comm_size(node, &local_ranks));
  MPI_CHECK(MPI_Comm_rank(MPI_COMM_WORLD, &mine.world_rank));
  std::vector<Entry> all(static_cast<std::size_t>(local_ranks));
  MPI_CHECK(MPI_Allgather(&mine, sizeof(Entry), MPI_BYTE, all.data(), sizeof(Entry), MPI_BYTE, node));
  for (const Entry& entry : all) {
    pids_.push_back(entry.pid);
    world_ranks_.push_back(entry.world_rank);
    descriptors_.push_back(entry.pid == mine.pid ? -1 : static_cast<int>(syscall(SYS_pidfd_open, entry.pid, 0)));
  }
}

Peers::~Peers() {
  for (int descriptor : descriptors_)
    if (descriptor >= 0) close(descriptor);
}

Peers& Peers::operator=(Peers&& other) noexcept {
  std::swap(pids_, other.pids_);
  std::swap(world_ranks_, other.world_ranks_);
  std::swap(descriptors_, other.descriptors_);
  return *this;
}

bool Peers::has_ended(int local_rank) const {
  pollfd watched{descriptors_[static_cast<std::size_t>(local_rank)], POLLIN, 0};
  return watched.fd >= 0 && poll(&watched, 1, 0) == 1;
}

std::optional<int> Peers::ended_rank() const {
  for (std::size_t r = 0; r < pids_.size(); ++r)
    if (has_ended(static_cast<int>(r))) return world_ranks_[r];
  return std::nullopt;
}

}  // namespace tessera
