#include "topology/mpi.hpp"

#include <sched.h>
#include <unistd.h>

#include <string_view>

#include "base/clock.hpp"
#include "topology/peers.hpp"

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
       "{}:{}: {} failed: {}. See whether a node or the network went down, then run again; the run resumes from its "
       "last checkpoint.",
       file, line, name.substr(0, name.find('(')), text);
}

namespace {

void require_peers(const WaitLimit& limit) {
  if (!limit.peers) return;
  if (auto rank = limit.peers->ended_rank())
    fail(ExitCode::lost,
         "the process of rank {} has ended during {}. Its own last lines, or the kernel's log when memory ran out, say why; run again to "
         "resume.",
         *rank, limit.what());
}

bool is_done(MPI_Request& request, const WaitLimit& limit) {
  int done = 0;
  const int status = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
  if (status == MPI_SUCCESS) return done != 0;
  require_peers(limit);  // says more than what MPI makes of it
  fail_mpi("MPI_Test", status, __FILE__, __LINE__);
}

}  // namespace

void wait_for(MPI_Request& request, const WaitLimit& limit) {
  for (int spin = 0; spin < 64; ++spin)
    if (is_done(request, limit)) return;
  double start = now_seconds(), waited = 0, checked = 0;
  while (true) {
    for (int poll = 0; poll < 16; ++poll) {
      if (is_done(request, limit)) return;
      // At first another rank may only need the core; later whoever computes should have it.
      if (waited < 2e-3)
        sched_yield();
      else
        usleep(20);
    }
    waited = now_seconds() - start;
    if (waited - checked > 0.25) {
      checked = waited;
      require_peers(limit);
    }
    if (waited > limit.seconds) fail(ExitCode::lost, "waited {:.0f} s in {}", waited, limit.what());
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
