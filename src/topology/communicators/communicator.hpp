// Collectives over a group of ranks. Each lane owns its own communicator: on host ranks calls block and a lane is a thread; on GPUs a call
// enqueues on the lane's stream and returns.
#pragma once
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>

#include "base/types.hpp"
#include "kernels/context.hpp"
#include "memory/arena.hpp"

namespace tessera {

enum class Reduction { sum, max };
enum class CollectiveKind : std::uint8_t { all_gather, reduce_scatter, all_reduce, all_to_all, rotate };

/// All ranks of the group call the same functions in the same order with the same counts.
/// `stride` (elements, 0: count) is the distance between the blocks of consecutive ranks in the larger buffer, so that a piece of every
/// shard can be moved. `context` holds the stream and the workspace of a GPU; communicators of host memory take the default.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// "mpi", "shared memory", "nccl": for the start banner.
  virtual std::string path() const = 0;

  /// recv[r * stride + i] = send of rank r, i < count. In place when send == recv + rank * stride.
  virtual void all_gather(void* recv, const void* send, std::int64_t count, DType, std::int64_t stride = 0,
                          const kernels::Context& context = {}) = 0;
  /// recv[i] (+)= sum over ranks of send[rank() * stride + i], i < count; `accumulate` adds to recv. Sums go in rank order, in fp32 for
  /// bf16, on host ranks, and on GPUs where context.reproducible asks for it; otherwise in NCCL's order, which depends on nodes, on how
  /// ranks lie on GPUs, and with in-switch sums on the call. On GPUs it needs reduce_scatter_workspace_bytes.
  virtual void reduce_scatter(void* recv, const void* send, std::int64_t count, DType, std::int64_t stride = 0, bool accumulate = false,
                              const kernels::Context& context = {}) = 0;
  /// In place. The result has the same bits on all ranks.
  virtual void all_reduce(void* buffer, std::int64_t count, DType, Reduction = Reduction::sum, const kernels::Context& context = {}) = 0;
  virtual void broadcast(void* buffer, std::int64_t count, DType, int root, const kernels::Context& context = {}) = 0;
  /// `times` matrices of a block a rank are turned: recv[(k * size + r) * count + i] = send[(k * size + rank()) * count + i] of rank r, for
  /// k < times and i < count. Not in place.
  virtual void all_to_all(void* recv, const void* send, std::int64_t count, DType, std::int64_t times = 1,
                          const kernels::Context& context = {}) = 0;
  /// Each sends to the rank that is `by` further in the group, behind the last to the first: recv = send of the rank that many before, of
  /// 1 to size() ranks. Not in place.
  virtual void rotate(void* recv, const void* send, std::int64_t count, DType, int by = 1, const kernels::Context& context = {}) = 0;
  // Between two ranks: what one sends the other receives. Both wait until the other has come.
  void send(const void* data, std::int64_t count, DType dtype, const kernels::Context& context = {}) {
    broadcast(const_cast<void*>(data), count, dtype, rank(), context);  // is read alone
  }
  void receive(void* data, std::int64_t count, DType dtype, const kernels::Context& context = {}) {
    broadcast(data, count, dtype, 1 - rank(), context);
  }
  /// The host threads of the ranks meet; what streams were given may still be under way.
  virtual void barrier() = 0;

  /// Collectives will use this memory from now on, and may then move it without copies of their own. Collective; at most one range. Where
  /// it cannot be done, collectives go on as before: that is no error. The memory must stay until deregister_memory (RegisteredMemory).
  virtual void register_memory(std::span<std::byte> memory) { static_cast<void>(memory); }
  /// No collective may be under way. Does not throw: nothing depends on it any more.
  virtual void deregister_memory() {}

  // For whoever waits. Calls that block find their errors themselves: there is nothing to check.

  /// Throws Error(environment) where a call that has returned failed later, and Error(lost) where a process that it waits for has ended or
  /// nothing has moved for `waited` seconds and the time limit is shorter.
  virtual void check(double waited) { static_cast<void>(waited); }
  /// Ends what is under way, undone, from any thread: streams end, calls that block throw Error(lost). Nothing can be called afterwards.
  virtual void abort() {}
};

/// Memory is registered while this lives, which is shorter than communicator and memory.
class RegisteredMemory {
 public:
  RegisteredMemory(Communicator& communicator, std::span<std::byte> memory) : communicator_(communicator) {
    communicator_.register_memory(memory);
  }
  /// While an error is on its way a peer may be gone, and taking back what it maps would wait for it: then the communicator goes with it.
  ~RegisteredMemory() { std::uncaught_exceptions() > 0 ? communicator_.abort() : communicator_.deregister_memory(); }
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;

 private:
  Communicator& communicator_;
};

/// A reduce_scatter, as far as its workspace depends on it.
struct ScatteredSum {
  std::int64_t members = 1, count = 0;
  DType dtype = DType::f32;
  bool accumulate = false, reproducible = false;
  /// All members' terms are gathered and added here: the order is ours. Integers have no order to keep.
  constexpr bool in_order() const { return reproducible && dtype != DType::i64; }
};
/// Bytes of workspace for reduce_scatter: NCCL cannot add to what is there, nor in an order of ours.
constexpr std::int64_t reduce_scatter_workspace_bytes(kernels::Backend backend, const ScatteredSum& sum) {
  if (backend == kernels::Backend::host) return 0;
  return (sum.in_order() ? sum.members : sum.accumulate ? 1 : 0) * sum.count * static_cast<std::int64_t>(size_of(sum.dtype));
}

}  // namespace tessera
