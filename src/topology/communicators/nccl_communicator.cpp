#include "topology/communicators/nccl_communicator.hpp"

#include <nccl.h>
#include <sched.h>
#include <unistd.h>

#include <exception>
#include <optional>
#include <utility>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "topology/communicators/reduce.hpp"
#include "topology/failure/patience.hpp"
#include "topology/failure/peers.hpp"
#include "topology/failure/watch.hpp"
#include "topology/world.hpp"

namespace tessera {
namespace {

constexpr double look_seconds = 0.25, finalize_seconds = 10;

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return ncclFloat32;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f16:
      return ncclFloat16;
    case DType::i64:
      return ncclInt64;
    case DType::e4m3:  // moved as bytes
    case DType::e5m2:
      return ncclUint8;
    case DType::u16:
    case DType::u32:
      break;
  }
  fail(ExitCode::internal, "no type of NCCL's for {}", name_of(dtype));
}
std::size_t bytes_of(std::int64_t count, DType dtype) { return static_cast<std::size_t>(count) * size_of(dtype); }
cudaStream_t stream_of(const kernels::Context& context) { return static_cast<cudaStream_t>(context.stream); }

/// Every NCCL communicator is non-blocking: a call may answer ncclInProgress, and the next one must wait until that is over (settle).
/// Neither a rank that does not come nor one that dies can then hold the host in a call for ever.
class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(OwnedComm comm, std::string label, double timeout_seconds, const Peers* peers, int most_blocks)
      : mpi_(std::move(comm)), label_(std::move(label)), timeout_seconds_(timeout_seconds), peers_(peers) {
    MPI_CHECK(MPI_Comm_rank(mpi_.get(), &rank_));
    MPI_CHECK(MPI_Comm_size(mpi_.get(), &size_));
    const ncclUniqueId id = agree_on_id();
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (most_blocks > 0) config.maxCTAs = most_blocks;
    config.commName = label_.c_str();  // in NCCL's own log
    try {
      settle(ncclCommInitRankConfig(&nccl_, size_, id, rank_, &config), "ncclCommInitRankConfig");
    } catch (...) {
      abort();
      throw;
    }
  }

  /// While an error is on its way nobody may wait for the other ranks.
  ~NcclCommunicator() override {
    if (std::uncaught_exceptions() > 0 || !finalize()) abort();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string path() const override { return "nccl"; }

  void all_gather(void* recv, const void* send, std::int64_t count, DType dtype, std::int64_t stride,
                  const kernels::Context& context) override {
    const std::size_t bytes = bytes_of(count, dtype);
    if (stride == 0 || stride == count)
      return settle(ncclAllGather(send, recv, bytes, ncclUint8, nccl_, stream_of(context)), "ncclAllGather");
    // One broadcast for each rank's piece, all in one launch.
    group("ncclBroadcast", [&](int r) {
      return ncclBroadcast(send, static_cast<std::byte*>(recv) + bytes_of(r * stride, dtype), bytes, ncclUint8, r, nccl_,
                           stream_of(context));
    });
  }

  void reduce_scatter(void* recv, const void* send, std::int64_t count, DType dtype, std::int64_t stride, bool accumulate,
                      const kernels::Context& context) override {
    const ScatteredSum shape{size_, count, dtype, accumulate, context.reproducible};
    TESSERA_REQUIRE(static_cast<std::int64_t>(context.workspace.size()) >= reduce_scatter_workspace_bytes(kernels::Backend::cuda, shape),
                    "a reduce_scatter of {} {} has {} bytes of workspace", count, name_of(dtype), context.workspace.size());
    if (shape.in_order()) return sum_in_order(recv, send, shape, stride ? stride : count, context);
    void* sum = accumulate ? static_cast<void*>(context.workspace.data()) : recv;
    const auto n = static_cast<std::size_t>(count);
    if (stride == 0 || stride == count)
      settle(ncclReduceScatter(send, sum, n, type_of(dtype), ncclSum, nccl_, stream_of(context)), "ncclReduceScatter");
    else
      group("ncclReduce", [&](int r) {
        return ncclReduce(static_cast<const std::byte*>(send) + bytes_of(r * stride, dtype), sum, n, type_of(dtype), ncclSum, r, nccl_,
                          stream_of(context));
      });
    if (accumulate) kernels::add(context, recv, recv, sum, count, dtype);
  }

  void all_reduce(void* buffer, std::int64_t count, DType dtype, Reduction reduction, const kernels::Context& context) override {
    settle(ncclAllReduce(buffer, buffer, static_cast<std::size_t>(count), type_of(dtype), reduction == Reduction::sum ? ncclSum : ncclMax,
                         nccl_, stream_of(context)),
           "ncclAllReduce");
  }

  void broadcast(void* buffer, std::int64_t count, DType dtype, int root, const kernels::Context& context) override {
    settle(ncclBroadcast(buffer, buffer, bytes_of(count, dtype), ncclUint8, root, nccl_, stream_of(context)), "ncclBroadcast");
  }

  void all_to_all(void* recv, const void* send, std::int64_t count, DType dtype, std::int64_t times,
                  const kernels::Context& context) override {
    const std::size_t bytes = bytes_of(count, dtype);
    auto* to = static_cast<std::byte*>(recv);
    const auto* from = static_cast<const std::byte*>(send);
    const auto place = [&](std::int64_t k, int r) { return static_cast<std::size_t>(k * size_ + r) * bytes; };
    for (std::int64_t k = 0; k < times; ++k) kernels::copy(context, to + place(k, rank_), from + place(k, rank_), bytes);
    if (size_ == 1) return;
    // All pairs in one launch: NCCL has no call for it.
    group("ncclSend and ncclRecv", [&](int r) {
      ncclResult_t result = ncclSuccess;
      for (std::int64_t k = 0; r != rank_ && k < times && result == ncclSuccess; ++k) {
        result = ncclSend(from + place(k, r), bytes, ncclUint8, r, nccl_, stream_of(context));
        if (result == ncclSuccess) result = ncclRecv(to + place(k, r), bytes, ncclUint8, r, nccl_, stream_of(context));
      }
      return result;
    });
  }

  void rotate(void* recv, const void* send, std::int64_t count, DType dtype, int by, const kernels::Context& context) override {
    const std::size_t bytes = bytes_of(count, dtype);
    if (by % size_ == 0) return kernels::copy(context, recv, send, bytes);
    const int next = (rank_ + by) % size_, before = (rank_ + size_ - by) % size_;
    group("ncclSend and ncclRecv", [&](int r) {
      ncclResult_t result = ncclSuccess;
      if (r == next) result = ncclSend(send, bytes, ncclUint8, r, nccl_, stream_of(context));
      if (r == before && result == ncclSuccess) result = ncclRecv(recv, bytes, ncclUint8, r, nccl_, stream_of(context));
      return result;
    });
  }

  void barrier() override {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_CHECK(MPI_Ibarrier(mpi_.get(), &request));
    mpi_.wait(request, {timeout_seconds_, peers_, [this] { return fmt::format("a barrier ({})", label_); }});
  }

  // NCCL's user guide, "User Buffer Registration" and "Environment Variables" (NCCL_LEGACY_CUDA_REGISTER). What is relied on: a range
  // covers every buffer inside it; if any rank passes registered buffers to a call, all must, send and receive buffers alike; and without
  // registration every call works as before. Arenas come from cudaMalloc. NCCL then uses the registration with InfiniBand SHARP, and on
  // networks where PXN is off; between the GPUs of a node it asks for memory of the cuMem calls (ncclMemAlloc) and leaves cudaMalloc's
  // alone, unless NCCL_LEGACY_CUDA_REGISTER=1 is set, of which the guide says that it may hang.
  void register_memory(std::span<std::byte> memory) override {
    TESSERA_REQUIRE(!registered_, "memory is registered with {} already", who());
    void* handle = nullptr;
    const ncclResult_t result = settled(ncclCommRegister(nccl_, memory.data(), memory.size(), &handle), "ncclCommRegister");
    if (result == ncclSuccess) registered_ = handle;
    int everywhere = result == ncclSuccess;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_CHECK(MPI_Iallreduce(MPI_IN_PLACE, &everywhere, 1, MPI_INT, MPI_MIN, mpi_.get(), &request));
    mpi_.wait(request, {timeout_seconds_, peers_, [this] { return fmt::format("the registration of memory ({})", label_); }});
    if (everywhere) return;
    deregister_memory();
    info(
        "NCCL cannot register the GPU's memory ({}: {}), so collectives copy through NCCL's own buffers; NCCL_DEBUG=INFO with "
        "NCCL_DEBUG_SUBSYS=REG shows the reason",
        label_, result == ncclSuccess ? "refused on another rank" : ncclGetErrorString(result));
  }

  void deregister_memory() override {
    if (!registered_ || !nccl_) return;
    if (ended(ncclCommDeregister(nccl_, *std::exchange(registered_, std::nullopt))) != ncclSuccess)
      debug("NCCL could not deregister memory ({}): {}", label_, ncclGetLastError(nccl_));
  }

  void check(double waited) override {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(nccl_, &state);
    if (asked != ncclSuccess) fail_nccl(asked, "ncclCommGetAsyncError");
    if (state != ncclSuccess && state != ncclInProgress) fail_nccl(state, "a collective");
    require_peers(waited, "collectives");
  }

  void abort() override {
    registered_.reset();  // gone with the communicator
    // The last that is done here: it may last longer than this object. What it answers changes nothing: an error is on its way already.
    if (ncclComm_t given_up = std::exchange(nccl_, nullptr)) ncclCommAbort(given_up);
  }

 private:
  /// As many bytes on the wire as a ring's, and every term in its place.
  void sum_in_order(void* recv, const void* send, const ScatteredSum& sum, std::int64_t stride, const kernels::Context& context) {
    const std::size_t bytes = bytes_of(sum.count, sum.dtype);
    std::byte* terms = context.workspace.data();
    const auto* from = static_cast<const std::byte*>(send);
    const auto term = [&](int r) { return terms + static_cast<std::size_t>(r) * bytes; };
    const auto block = [&](int r) { return from + bytes_of(r * stride, sum.dtype); };
    kernels::copy(context, term(rank_), block(rank_), bytes);
    group("ncclSend and ncclRecv", [&](int r) {
      if (r == rank_) return ncclSuccess;
      const ncclResult_t result = ncclSend(block(r), bytes, ncclUint8, r, nccl_, stream_of(context));
      return result != ncclSuccess ? result : ncclRecv(term(r), bytes, ncclUint8, r, nccl_, stream_of(context));
    });
    kernels::sum_in_order(context,
                          {.out = recv, .parts = terms, .P = size_, .n = sum.count, .dtype = sum.dtype, .accumulate = sum.accumulate});
  }

  std::string who() const { return fmt::format("rank {} of {} ({})", rank_, size_, label_); }

  ncclUniqueId agree_on_id() {
    ncclUniqueId id{};
    if (rank_ == 0) {
      const ncclResult_t made = ncclGetUniqueId(&id);
      if (made != ncclSuccess) fail_nccl(made, "ncclGetUniqueId");
    }
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_CHECK(MPI_Ibcast(&id, sizeof id, MPI_BYTE, 0, mpi_.get(), &request));
    mpi_.wait(request, {timeout_seconds_, peers_, [this] { return fmt::format("the exchange of NCCL's id ({})", label_); }});
    return id;
  }

  /// Calls f(r) for every rank as one launch.
  template <class F>
  void group(const char* call, F f) {
    ncclGroupStart();
    ncclResult_t first = ncclSuccess;
    for (int r = 0; r < size_; ++r) {
      const ncclResult_t result = f(r);
      if (first == ncclSuccess && result != ncclInProgress) first = result;
    }
    const ncclResult_t ended = ncclGroupEnd();
    settle(first == ncclSuccess ? ended : first, call);
  }

  void settle(ncclResult_t result, const char* call) {
    result = settled(result, call);
    if (result != ncclSuccess) fail_nccl(result, call);
  }
  /// What a call has come to, when the communicator takes another one: connections are made at first use, which needs the other ranks.
  ncclResult_t settled(ncclResult_t result, const char* call) {
    Patience patience;
    for (double waited = 0; result == ncclInProgress; waited = patience.waited()) {
      const ncclResult_t asked = ncclCommGetAsyncError(nccl_, &result);
      if (asked != ncclSuccess) fail_nccl(asked, call);
      if (result != ncclInProgress) break;
      require_peers(waited, call);
      waited < 2e-3 ? sched_yield() : usleep(20);
    }
    lasting_.reset();
    return result;
  }

  void require_peers(double waited, const char* what) {
    const auto wait = [&] { return fmt::format("{} ({})", what, label_); };
    if (waited < 0.2)
      lasting_.reset();  // another wait than the last one
    else if (!lasting_)
      lasting_.emplace(peers_ ? peers_->whereabouts() : nullptr), lasting_->lasts(waited, wait);
    if (now_seconds() - looked_ > look_seconds) {
      looked_ = now_seconds();
      require_processes(what);
    }
    if (waited > timeout_seconds_)
      fail(ExitCode::lost, "waited {:.0f} s in {} on {}; {}", waited, what, who(), explain_wait(peers_, wait()));
  }
  void require_processes(const char* what) const {
    if (!peers_) return;
    if (const auto ended = peers_->ended_rank())
      fail(ExitCode::lost,
           "the process of {} has ended during {} on {}. Its own last lines, or the kernel's log if memory ran out, show the reason; run "
           "again to resume.",
           peers_->name(*ended), what, who());
  }

  [[noreturn]] void fail_nccl(ncclResult_t result, const char* call) const {
    require_processes(call);  // a lost connection is only what it looks like from here
    const char* detail = nccl_ ? ncclGetLastError(nccl_) : "";
    fail(result == ncclRemoteError ? ExitCode::lost : ExitCode::environment,
         "{} failed on {}: {}{}{}. Set NCCL_DEBUG=WARN to see NCCL's own report; the run resumes from its last checkpoint.", call, who(),
         ncclGetErrorString(result), detail && *detail ? ", " : "", detail ? detail : "");
  }

  /// What a call of the good end has come to within the time that the end may take; ncclInProgress where it lasts longer.
  ncclResult_t ended(ncclResult_t state) const {
    for (const double begin = now_seconds(); state == ncclInProgress && now_seconds() - begin < finalize_seconds; usleep(20))
      if (const ncclResult_t asked = ncclCommGetAsyncError(nccl_, &state); asked != ncclSuccess) return asked;
    return state;
  }

  /// The good end, which waits for what is under way; false where that fails or lasts.
  bool finalize() {
    if (!nccl_) return true;
    deregister_memory();
    if (ended(ncclCommFinalize(nccl_)) != ncclSuccess) return false;
    return ncclCommDestroy(std::exchange(nccl_, nullptr)) == ncclSuccess;
  }

  OwnedComm mpi_;
  std::string label_;
  double timeout_seconds_;
  const Peers* peers_;
  ncclComm_t nccl_ = nullptr;
  std::optional<void*> registered_;  ///< NCCL's handle, which may be null where it has nothing to do
  int rank_ = 0, size_ = 1;
  double looked_ = 0;
  std::optional<LongWait> lasting_;
};

}  // namespace

std::string nccl_version() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return "unknown";
  return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

std::unique_ptr<Communicator> make_nccl_communicator(OwnedComm comm, const std::string& label, double timeout_seconds, const Peers* peers,
                                                     int most_blocks) {
  return std::make_unique<NcclCommunicator>(std::move(comm), label, timeout_seconds, peers, most_blocks);
}

}  // namespace tessera
