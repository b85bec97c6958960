#include "topology/failure/mpi.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "base/clock.hpp"
#include "topology/failure/patience.hpp"
#include "topology/failure/peers.hpp"
#include "topology/failure/watch.hpp"

namespace tessera {

void fail_mpi(const char* call, int status, const char* file, int line) {
  char text[MPI_MAX_ERROR_STRING] = "unknown MPI error";
  int length = 0;
  MPI_Error_string(status, text, &length);
  // In a world that stands, a peer or the way to it is gone; one that was never made is a launch that would fail again.
  int in_world = 0;
  MPI_Initialized(&in_world);
  std::string_view name(call);
  fail(in_world ? ExitCode::lost : ExitCode::environment,
       "{}:{}: {} failed: {}. Check whether a node or the network failed, then run again; the run resumes from its last checkpoint.", file,
       line, name.substr(0, name.find('(')), text);
}

namespace {

void require_peers(const WaitLimit& limit) {
  if (!limit.peers) return;
  if (auto rank = limit.may_end ? limit.peers->unexpected_end() : limit.peers->ended_rank())
    fail(ExitCode::lost,
         "the process of {} has ended during {}. Its own last lines, or the kernel's log if memory ran out, show the reason; run again to "
         "resume.",
         limit.peers->name(*rank), limit.what());
}

/// Where a connection of MPI's broke, its other end may have gone a moment ago.
void require_peers_for_a_while(const WaitLimit& limit) {
  constexpr double seconds = 1;
  for (const double begin = now_seconds(); now_seconds() - begin < seconds; usleep(20000)) require_peers(limit);
}

bool is_done(MPI_Request& request, const WaitLimit& limit) {
  int done = 0;
  const int status = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
  if (status == MPI_SUCCESS) return done != 0;
  require_peers_for_a_while(limit);  // says more than what MPI makes of it
  fail_mpi("MPI_Test", status, __FILE__, __LINE__);
}

}  // namespace

std::string explain_wait(const Peers* peers, const std::string& wait) {
  return peers && peers->watch() ? peers->watch()->explain(wait) : "not all ranks have arrived";
}

void wait_for(MPI_Request& request, const WaitLimit& limit) {
  for (int spin = 0; spin < 64; ++spin)
    if (is_done(request, limit)) return;
  Patience patience;
  LongWait lasting(limit.peers ? limit.peers->whereabouts() : nullptr);
  double waited = 0, checked = now_seconds();
  while (true) {
    // At first another rank may only need the core; later whoever computes should have it, or begins: a look costs microseconds, and of
    // many ranks on a core those that wait would take most of it.
    const double yields = limit.carries ? 2e-3 : 2e-4;
    const auto pause = static_cast<useconds_t>(limit.carries ? 20 : std::clamp(waited * 1e6 / 64, 20.0, 1000.0));
    for (int poll = 0; poll < 16; ++poll) {
      if (is_done(request, limit)) return;
      if (waited < yields)
        sched_yield();
      else
        usleep(pause);
    }
    const double now = now_seconds();
    waited = patience.waited(now);
    if (limit.aborted && limit.aborted->load())
      fail(ExitCode::lost, "{} was abandoned because another lane of this rank has failed", limit.what());
    if (now - checked > 0.25) {
      checked = now;
      require_peers(limit);
      lasting.lasts(waited, limit.what);
    }
    if (waited > limit.seconds)
      fail(ExitCode::lost, "waited {:.0f} s in {}; {}", waited, limit.what(), explain_wait(limit.peers, limit.what()));
  }
}

void complete(MPI_Request& request) { wait_for(request, {.seconds = std::numeric_limits<double>::infinity()}); }

MPI_Comm duplicate(MPI_Comm comm) {
  MPI_Comm made = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_CHECK(MPI_Comm_idup(comm, &made, &request));
  complete(request);
  return made;
}

MPI_Comm comm_of(MPI_Comm comm, const std::vector<int>& ranks, int tag) {
  int size = 0;
  MPI_CHECK(MPI_Comm_size(comm, &size));
  if (std::cmp_equal(ranks.size(), size) && std::is_sorted(ranks.begin(), ranks.end())) return duplicate(comm);
  MPI_Group everyone = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
  MPI_CHECK(MPI_Comm_group(comm, &everyone));
  MPI_CHECK(MPI_Group_incl(everyone, static_cast<int>(ranks.size()), ranks.data(), &members));
  MPI_Comm made = MPI_COMM_NULL;
  MPI_CHECK(MPI_Comm_create_group(comm, members, tag, &made));
  MPI_Group_free(&members);
  MPI_Group_free(&everyone);
  return made;
}

void OwnedComm::wait(MPI_Request& request, const WaitLimit& limit) {
  try {
    wait_for(request, limit);
  } catch (...) {
    comm_ = MPI_COMM_NULL;
    throw;
  }
}

void OwnedComm::reset() {
  int finalized = 0;
  if (comm_ == MPI_COMM_NULL) return;
  MPI_Finalized(&finalized);
  if (!finalized) MPI_Comm_free(&comm_);
  comm_ = MPI_COMM_NULL;
}

}  // namespace tessera
