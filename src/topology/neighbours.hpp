// Ranks that keep something for each other: what a rank has lies on another node too.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "topology/world.hpp"

namespace tessera {

/// By rank the one that keeps a copy of what it has. Each rank keeps one other's. It is on another node, unless one node has more than half
/// of all ranks; then some are not.
std::vector<int> keepers_of(const std::vector<int>& node_of_rank);

/// Bytes that lie where `read` finds them.
struct Outgoing {
  std::int64_t bytes = -1;  ///< -1: there are none to send
  std::function<void(std::int64_t at, std::span<std::byte> out)> read;
};
/// Who takes bytes that come.
struct Incoming {
  std::function<void(std::int64_t bytes)> begin;  ///< -1: none come
  std::function<void(std::int64_t at, std::span<const std::byte>)> write;
  std::function<void()> end;  ///< all have come
};

/// Has messages of its own, so that it may be used by a thread beside the world's other work. The world must outlive it.
class Neighbours {
 public:
  /// Collective.
  explicit Neighbours(const World& world);
  ~Neighbours();
  Neighbours(const Neighbours&) = delete;
  Neighbours& operator=(const Neighbours&) = delete;

  int keeper() const { return keeper_; }  ///< of what this rank has
  int kept() const { return kept_; }      ///< whose this rank keeps
  /// Whether each rank's keeper is on another node.
  bool on_other_nodes() const { return on_other_nodes_; }

  /// Collective, one call at a time: sends this rank's to its keeper, and takes those of whom it keeps. What the functions throw is thrown
  /// when all bytes have gone and come: no other rank waits for this one. Error(lost) where a rank is.
  void pass(const Outgoing& mine, const Incoming& theirs) const;

  /// Ends what is under way, undone, from any thread: it throws Error(lost), and so does every call from now on.
  void abort();

  /// Bytes that one rank sends another.
  struct Transfer {
    int from = 0, to = 0;
  };
  /// Collective, with the same list on all ranks: one after the other; each rank is asked for what is its own. As `pass` otherwise.
  void carry(const std::vector<Transfer>& transfers, const std::function<Outgoing(std::size_t)>& outgoing,
             const std::function<Incoming(std::size_t)>& incoming) const;

 private:
  struct Messages;
  struct Channel;
  std::unique_ptr<Channel> channel_;
  int rank_ = 0, keeper_ = 0, kept_ = 0;
  bool on_other_nodes_ = true;
};

}  // namespace tessera
