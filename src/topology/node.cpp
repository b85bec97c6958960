#include "topology/node.hpp"

#include <mutex>

#include "base/check.hpp"
#include "base/log.hpp"
#include "base/types.hpp"
#include "topology/shared/shared_block.hpp"
#include "topology/world_handles.hpp"

namespace tessera {

/// One call of register_arena: this rank's arena and the peers' as this process sees them. No peers: not shared, use the staging window.
struct Node::Registration {
  const std::byte* base = nullptr;
  std::size_t bytes = 0;
  std::vector<Mapping> peers;  // by local rank; empty at our own
};

Node::Node(const World& world, const NodeOptions& options) : world_(world), options_(options) {}

Node::~Node() = default;

bool Node::has_ended(int local_rank) const { return world_.handles().peers.has_ended(local_rank); }

void Node::register_arena(const Arena& arena) {
  struct Offer {
    PeerFile file;
    std::size_t bytes;
  };
  MPI_Comm comm = world_.handles().node.get();
  auto me = static_cast<std::size_t>(world_.place().local_rank);
  Offer mine{options_.direct ? PeerFile::of(arena.descriptor()) : PeerFile(), arena.bytes()};
  std::vector<Offer> offers(static_cast<std::size_t>(world_.place().local_ranks));
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_CHECK(MPI_Iallgather(&mine, sizeof(Offer), MPI_BYTE, offers.data(), sizeof(Offer), MPI_BYTE, comm, &request));
  complete(request);

  auto registration = std::make_unique<Registration>();
  registration->base = arena.data();
  registration->bytes = arena.bytes();
  registration->peers.resize(offers.size());
  std::string reason;
  for (std::size_t r = 0; r < offers.size() && reason.empty(); ++r) {
    if (offers[r].bytes == 0) continue;
    if (offers[r].file.descriptor < 0) {
      reason = options_.direct ? fmt::format("the arena of local rank {} is not of tier shared", r) : "direct access is switched off";
    } else if (r != me) {
      std::string why;
      registration->peers[r] = Mapping::of_peer(offers[r].file, offers[r].bytes, why);
      if (!registration->peers[r]) reason = fmt::format("the memory of local rank {} cannot be read here: {}", r, why);
    }
  }
  // Also the point after which every peer has mapped what it needs.
  if (!all_agree(comm, reason.empty())) {
    registration->peers.clear();
    if (!reason.empty() && options_.direct && offers.size() > 1)
      warning("collectives on this node copy through a staging window: {}", reason);
  }
  std::unique_lock lock(mutex_);
  registrations_.push_back(std::move(registration));
}

void Node::unregister_arena(const Arena& arena) {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_CHECK(MPI_Ibarrier(world_.handles().node.get(), &request));
  complete(request);
  std::unique_lock lock(mutex_);
  for (auto& registration : registrations_)
    if (registration && registration->base == arena.data() && registration->bytes == arena.bytes()) {
      registration.reset();
      return;
    }
  TESSERA_REQUIRE(false, "an arena of {} is unregistered but was never registered", human_bytes(static_cast<double>(arena.bytes())));
}

std::optional<Node::Location> Node::locate(const void* data, std::size_t bytes) const {
  auto begin = reinterpret_cast<std::uintptr_t>(data);
  std::shared_lock lock(mutex_);
  for (std::size_t id = 0; id < registrations_.size(); ++id) {
    const Registration* registration = registrations_[id].get();
    if (!registration || registration->peers.empty()) continue;
    auto base = reinterpret_cast<std::uintptr_t>(registration->base);
    if (begin >= base && begin + bytes <= base + registration->bytes) return Location{static_cast<int>(id), begin - base};
  }
  return std::nullopt;
}

const std::byte* Node::resolve(int local_rank, Location location) const {
  std::shared_lock lock(mutex_);
  const Registration& registration = *registrations_[static_cast<std::size_t>(location.arena)];
  bool own = local_rank == world_.place().local_rank;
  return (own ? registration.base : registration.peers[static_cast<std::size_t>(local_rank)].data()) + location.offset;
}

}  // namespace tessera
