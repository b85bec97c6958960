// What travels between nodes: a rail joins the ranks of one place on each node, and carries a part of every collective.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "topology/communicators/communicator.hpp"
#include "topology/failure/mpi.hpp"

namespace tessera {

/// Sums go up along the nodes: each adds its ranks' terms, in rank order, to what the nodes before it have summed. So a sum has the bits
/// that one rank would get by adding all terms in rank order. The last node sends the result to whom it belongs. Pieces follow each other,
/// so all links of the chain are at work at once, and what goes down does so beside what goes up.
class Rail {
 public:
  static constexpr std::int64_t piece_bytes = 128 << 10;  ///< of sums, at most

  /// Collective over `comm`, one rank of each node in the order of nodes. `what` names the collective under way.
  Rail(OwnedComm comm, double timeout_seconds, const Peers* peers, std::function<std::string()> what);

  int node() const { return node_; }
  int nodes() const { return nodes_; }
  /// From any thread: whoever waits here, now or later, throws Error(lost).
  void abort() { aborted_.store(true); }

  struct Sums {
    DType dtype = DType::f32;
    Reduction reduction = Reduction::sum;
    bool accumulate = false;  ///< the previous value of `out` is added last
  };
  struct Piece {
    std::int64_t count = 0;  ///< elements; the same on all nodes, 0 allowed
    int owner = -1;          ///< node that gets the sum; -1: all
    void* out = nullptr;     ///< where it is put, on nodes that get it
  };
  static std::int64_t piece_elements(DType dtype);
  /// `piece(p, sources)` says where the terms of this node's ranks lie, and is called once for each p < pieces, in order; they are read
  /// before the next call.
  void sum(const Sums& sums, std::int64_t pieces, int sources, const std::function<Piece(std::int64_t, std::span<const void*>)>& piece);

  /// Begins to gather `count` elements of each node to `to`, the nodes' `stride` elements apart; `from` may be the place where they go.
  /// The request ends in wait().
  MPI_Request begin_gather(void* to, const void* from, std::int64_t count, DType dtype, std::int64_t stride);
  void wait(MPI_Request& request);

 private:
  class Deliveries;
  OwnedComm comm_;
  double timeout_seconds_;
  const Peers* peers_;
  std::function<std::string()> what_;
  int node_ = 0, nodes_ = 1;
  std::atomic<bool> aborted_{false};
  std::vector<std::byte> staging_;  // two pieces from the node before, two sums of this one
};

}  // namespace tessera
