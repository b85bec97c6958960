// What the files of this folder share about MPI. Not for other folders: MPI stands here alone.
#pragma once
#include <mpi.h>
#include <atomic>

#include <functional>
#include <string>
#include <vector>

#include "base/check.hpp"

namespace tessera {

[[noreturn]] void fail_mpi(const char* call, int status, const char* file, int line);

class Peers;

/// Bounds a wait. `what` is asked only when it lasts; it names the collective, its lane and its number.
struct WaitLimit {
  double seconds = 300;
  const Peers* peers = nullptr;                ///< a wait also fails when one of these processes has ended
  std::function<std::string()> what = {};      ///< has the same words on all ranks of the collective
  const std::atomic<bool>* aborted = nullptr;  ///< where it becomes true the wait is given up
  bool may_end = false;                        ///< processes end as they should meanwhile: only a lost one is a fault
  bool carries = false;                        ///< much is sent, which MPI may do in pieces, one each time that it is asked
};

/// Who waits there and for whom, as far as the ranks can be asked.
std::string explain_wait(const Peers* peers, const std::string& wait);

/// Completes a request by polling, so that ranks that share a core leave it to each other: it looks the less often the longer it has
/// waited, but where the wait `carries`. Throws Error(lost) at the limit, and where a peer has ended.
void wait_for(MPI_Request& request, const WaitLimit& limit);

/// The same without a limit, for what is made before a world has its own. MPI's blocking calls would keep the core from whom they wait for.
void complete(MPI_Request& request);
/// Collective over `comm`: a duplicate.
MPI_Comm duplicate(MPI_Comm comm);
/// Collective over these ranks of `comm` alone, in this order. All of its ranks in their order are a duplicate.
MPI_Comm comm_of(MPI_Comm comm, const std::vector<int>& ranks, int tag);

/// A communicator handle that is freed with its owner (not after MPI_Finalize, where it is gone already).
class OwnedComm {
 public:
  OwnedComm() = default;
  explicit OwnedComm(MPI_Comm comm) : comm_(comm) {}
  ~OwnedComm() { reset(); }
  OwnedComm(OwnedComm&& other) noexcept : comm_(other.comm_) { other.comm_ = MPI_COMM_NULL; }
  OwnedComm& operator=(OwnedComm&& other) noexcept {
    std::swap(comm_, other.comm_);
    return *this;
  }
  MPI_Comm get() const { return comm_; }
  void reset();
  /// wait_for, for a collective on this communicator. Where the wait fails the collective stays under way, so the communicator is never
  /// freed: Open MPI crashes when it goes on with a collective whose communicator is gone.
  void wait(MPI_Request& request, const WaitLimit& limit);

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

}  // namespace tessera

/// Every MPI call stands in this: a status other than success becomes Error(lost), before MPI has started Error(environment),
/// with the call, MPI's words, file and line.
#define MPI_CHECK(call)                                                                          \
  do {                                                                                           \
    int mpi_status_ = (call);                                                                    \
    if (mpi_status_ != MPI_SUCCESS) ::tessera::fail_mpi(#call, mpi_status_, __FILE__, __LINE__); \
  } while (false)
