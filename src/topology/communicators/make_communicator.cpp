#include "topology/communicators/make_communicator.hpp"

#include <cstring>
#include <optional>
#include <set>

#include "base/backend.hpp"
#include "base/log.hpp"
#include "topology/communicators/hierarchical_communicator.hpp"
#include "topology/communicators/mpi_communicator.hpp"
#include "topology/communicators/nccl_communicator.hpp"
#include "topology/communicators/reduce.hpp"
#include "topology/communicators/shared_communicator.hpp"
#include "topology/shared/shared_block.hpp"
#include "topology/world_handles.hpp"

namespace tessera {
namespace {

/// A group of one rank.
class LocalCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string path() const override { return "one rank"; }

  void all_gather(void* recv, const void* send, std::int64_t count, DType dtype, std::int64_t, const kernels::Context&) override {
    if (recv != send && count > 0) std::memcpy(recv, send, static_cast<std::size_t>(count) * size_of(dtype));
  }
  void reduce_scatter(void* recv, const void* send, std::int64_t count, DType dtype, std::int64_t, bool accumulate,
                      const kernels::Context&) override {
    reduce_in_order(recv, &send, 1, count, dtype, Reduction::sum, accumulate);
  }
  void all_reduce(void*, std::int64_t, DType dtype, Reduction, const kernels::Context&) override { require_reducible(dtype); }
  void broadcast(void*, std::int64_t, DType, int, const kernels::Context&) override {}
  void all_to_all(void* recv, const void* send, std::int64_t count, DType dtype, std::int64_t times, const kernels::Context&) override {
    if (count * times > 0) std::memcpy(recv, send, static_cast<std::size_t>(count * times) * size_of(dtype));
  }
  void rotate(void* recv, const void* send, std::int64_t count, DType dtype, int, const kernels::Context&) override {
    if (count > 0) std::memcpy(recv, send, static_cast<std::size_t>(count) * size_of(dtype));
  }
  void barrier() override {}
};

/// Where the members of `comm` are, in its order; nothing where their nodes have unequal numbers of them, or come in several runs.
std::optional<NodeGrid> grid_of(const World& world, MPI_Comm comm, int size) {
  const Place& place = world.place();
  int mine[2] = {place.node, place.local_rank};
  std::vector<int> all(2 * static_cast<std::size_t>(size)), nodes, counts;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_CHECK(MPI_Iallgather(mine, 2, MPI_INT, all.data(), 2, MPI_INT, comm, &request));
  complete(request);
  NodeGrid grid;
  for (std::size_t r = 0; r < all.size(); r += 2) {
    if (nodes.empty() || all[r] != nodes.back()) nodes.push_back(all[r]), counts.push_back(0);
    ++counts.back();
    if (all[r] == place.node) grid.node = static_cast<int>(nodes.size()) - 1, grid.members.push_back(all[r + 1]);
  }
  grid.nodes = static_cast<int>(nodes.size());
  if (std::set(nodes.begin(), nodes.end()).size() != nodes.size() || std::set(counts.begin(), counts.end()).size() != 1) return {};
  return grid;
}

#ifdef TESSERA_CUDA
constexpr auto make_on_gpus = make_nccl_communicator;
#else
std::unique_ptr<Communicator> make_on_gpus(OwnedComm, const std::string& label, double, const Peers*, int) {
  fail(ExitCode::environment, "{}: this build has no CUDA backend, so no NCCL; build with the cuda preset", label);
}
#endif

/// An MPI communicator of the group's ranks, in its order. Collective over the group alone: ranks outside need not know of it.
OwnedComm make_group_comm(const World& world, const Group& group) {
  return OwnedComm(comm_of(world.handles().world.get(), group.world, static_cast<int>(group.axes)));
}

}  // namespace

#ifndef TESSERA_CUDA
std::string nccl_version() { return ""; }
#endif

std::unique_ptr<Communicator> make_communicator(const World& world, const Group& group, const CommunicatorOptions& options) {
  TESSERA_REQUIRE(group.world[static_cast<std::size_t>(group.rank)] == world.rank(), "rank {} makes a communicator of others",
                  world.rank());
  const bool fastest = options.path == CommunicatorPath::fastest;
  if (fastest && group.size == 1) return std::make_unique<LocalCommunicator>();

  std::string label = fmt::format("axis {}, lane {}", describe(group.axes), options.lane);
  double timeout = options.timeout_seconds > 0 ? options.timeout_seconds : world.options().collective_timeout_seconds;
  OwnedComm comm = make_group_comm(world, group);
  if (options.path == CommunicatorPath::nccl)
    return make_on_gpus(std::move(comm), label, timeout, &world.handles().peers, options.most_blocks);

  const Peers* peers = &world.handles().peers;
  const std::optional<NodeGrid> grid = fastest && options.node ? grid_of(world, comm.get(), group.size) : std::nullopt;
  const bool spans_nodes = grid && grid->nodes > 1 && grid->members.size() > 1 && options.hierarchical;
  if (!grid || (grid->nodes > 1 && !spans_nodes)) return make_mpi_communicator(std::move(comm), label, timeout, peers);

  std::string reason;
  if (spans_nodes) {
    auto flat = make_mpi_communicator(make_group_comm(world, group), label, timeout, peers);
    if (auto made = make_hierarchical_communicator(comm.get(), std::move(flat), *options.node, *grid, label, timeout, peers, reason))
      return made;
  } else if (auto made = make_shared_communicator(comm.get(), *options.node, grid->members, label, timeout, reason)) {
    return made;
  }
  warning("the ranks of this node cannot share memory ({}): {} goes over MPI, which is slower", reason, label);
  return make_mpi_communicator(std::move(comm), label, timeout, peers);
}

}  // namespace tessera
