// Memory that processes of one node have in common.
#pragma once
#include <cstddef>
#include <string>

#include "topology/failure/mpi.hpp"
#include "topology/failure/peer_file.hpp"

namespace tessera {

/// Owns one mapping of a memory file.
class Mapping {
 public:
  Mapping() = default;
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  /// Maps `bytes` of an open file; empty when the system refuses (errno says why).
  static Mapping of_file(int descriptor, std::size_t bytes);
  /// Maps another process's open memory file through /proc/PID/fd/N, if it is the announced one. Empty where it is not, or the system
  /// refuses; `reason` says why.
  static Mapping of_peer(const PeerFile& peer, std::size_t bytes, std::string& reason);

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  Mapping(std::byte* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Collective over `comm`, whose ranks are on one node: one zeroed block of `bytes`, mapped by all. Tries an anonymous memory file that the
/// peers open through /proc (`direct`), then a named one in /dev/shm whose name is gone before this returns. When neither works on all
/// ranks, all get an empty mapping and `reason` says why.
Mapping make_shared_block(MPI_Comm comm, std::size_t bytes, bool direct, std::string& reason);

/// True on all ranks of `comm` when it is true on all.
bool all_agree(MPI_Comm comm, bool mine);

}  // namespace tessera
