// Collectives along one mesh axis. Blocking calls; a lane calls them from its own thread, so each lane owns its own communicator.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "base/types.hpp"
#include "memory/arena.hpp"

namespace tessera {

enum class Reduction { sum, max };

/// All ranks of the axis call the same functions in the same order with the same counts.
/// `stride` (elements, 0: count) is the distance between the blocks of consecutive ranks in the larger buffer, so that a piece of every
/// shard can be moved.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// "mpi", "shared memory", "nccl": for the start banner.
  virtual std::string path() const = 0;

  /// recv[r * stride + i] = send of rank r, i < count. In place when send == recv + rank * stride.
  virtual void all_gather(void* recv, const void* send, std::int64_t count, DType, std::int64_t stride = 0) = 0;
  /// recv[i] (+)= sum over ranks of send[rank() * stride + i], i < count. Sums in rank order, fp32 for bf16. `accumulate` adds to recv.
  virtual void reduce_scatter(void* recv, const void* send, std::int64_t count, DType, std::int64_t stride = 0,
                              bool accumulate = false) = 0;
  /// In place. The result has the same bits on all ranks.
  virtual void all_reduce(void* buffer, std::int64_t count, DType, Reduction = Reduction::sum) = 0;
  virtual void broadcast(void* buffer, std::int64_t count, DType, int root) = 0;
  virtual void barrier() = 0;
};

}  // namespace tessera
