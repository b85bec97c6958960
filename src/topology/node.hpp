// What the ranks of one node share: registered arenas, and who of them is alive. One Node serves the communicators of all lanes.
#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "memory/arena.hpp"
#include "topology/world.hpp"

namespace tessera {

class Mapping;

struct NodeOptions {
  bool direct = true;  ///< false: never open a peer's memory through /proc, as in a container that forbids it
};

class Node {
 public:
  /// The world must outlive it.
  explicit Node(const World& world, const NodeOptions& options = {});
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  /// Collective over the ranks of this node, each with its own arena (of any size). Collectives on buffers inside it are then read by the
  /// peers where they lie. An arena that is not of Tier::shared, or whose memory a peer may not open, goes through a staging window instead
  /// (the reason is logged). The arena must stay until unregister_arena.
  void register_arena(const Arena& arena);
  /// Collective over the ranks of this node, in the order of all ranks; no collective may be running.
  void unregister_arena(const Arena& arena);

  /// A place in a registered arena that every peer can name: `arena` counts registrations.
  struct Location {
    int arena = -1;
    std::size_t offset = 0;
  };
  /// Where [data, data + bytes) lies, if it lies in one registered arena.
  std::optional<Location> locate(const void* data, std::size_t bytes) const;
  /// The same place as this process sees it, in the arena of a peer.
  const std::byte* resolve(int local_rank, Location location) const;

  const World& world() const { return world_; }
  bool direct() const { return options_.direct; }
  /// Whether the process of a peer has ended. False also where that cannot be known.
  bool has_ended(int local_rank) const;

 private:
  struct Registration;
  const World& world_;
  NodeOptions options_;
  mutable std::shared_mutex mutex_;  // registrations_ may grow while lanes look up
  std::vector<std::unique_ptr<Registration>> registrations_;
};

}  // namespace tessera
