// Saves by way of a disk of the node: a rank's shard is written there while the run waits, and goes from there to the run's folder
// while it goes on.
#pragma once
#include <string>

#include "io/checkpoint/checkpoint.hpp"

namespace tessera::io {

/// One rank's. What fails on either side throws Error(storage).
class Staging {
 public:
  /// Makes a folder below `folder`, which must be there, that no other run, no other rank and no other user uses, and removes what an
  /// earlier start of the run left in it. A folder of that name that is not this user's is refused.
  Staging(const std::string& folder, const std::string& root, int rank);
  /// Removes it.
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  const std::string& folder() const { return folder_; }
  /// As write_shard, on the node's disk, for this user's eyes alone.
  void write(std::int64_t step, const CheckpointLayout& layout, int shard, std::span<const ShardSlice> slices) const;
  /// write_shard(root, step, layout, shard) with what `write` wrote, every block of it compared with its checksum; then removes that.
  void drain(const std::string& root, std::int64_t step, const CheckpointLayout& layout, int shard) const;

 private:
  std::string folder_;
  int lock_ = -1;  // held while the rank lives, where the file system can
};

/// Removes the parts that killed starts of the run left below `folder`, in places where no rank is at work now. For one rank of a node,
/// when all ranks of the run have their Staging or want none there. What cannot be removed stays.
void remove_left_staging(const std::string& folder, const std::string& root) noexcept;

}  // namespace tessera::io
