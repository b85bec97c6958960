#include "topology/communicators/make_communicator.hpp"

#include <cstring>

#include "base/log.hpp"
#include "topology/communicators/mpi_communicator.hpp"
#include "topology/communicators/nccl_communicator.hpp"
#include "topology/communicators/reduce.hpp"
#include "topology/communicators/shared_block.hpp"
#include "topology/communicators/shared_communicator.hpp"
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
  void barrier() override {}
};

/// The local ranks of the members of `comm`, in its order; nothing when they are on several nodes.
std::vector<int> members_on_node(const World& world, MPI_Comm comm, int size) {
  const Place& place = world.place();
  int mine[2] = {place.node, place.local_rank};
  std::vector<int> all(2 * static_cast<std::size_t>(size)), members;
  MPI_CHECK(MPI_Allgather(mine, 2, MPI_INT, all.data(), 2, MPI_INT, comm));
  for (std::size_t r = 0; r < all.size(); r += 2) {
    if (all[r] != place.node) return {};
    members.push_back(all[r + 1]);
  }
  return members;
}

#ifdef TESSERA_CUDA
constexpr auto make_on_gpus = make_nccl_communicator;
#else
std::unique_ptr<Communicator> make_on_gpus(OwnedComm, const std::string& label, double, const Peers*) {
  fail(ExitCode::environment, "{}: this build has no CUDA backend, so no NCCL; build with the cuda preset", label);
}
#endif

/// An MPI communicator of the group's ranks, in its order. Collective over the group alone: ranks outside need not know of it.
OwnedComm make_group_comm(const World& world, const Group& group) {
  const MPI_Comm all = world.handles().world.get();
  MPI_Group everyone = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
  MPI_CHECK(MPI_Comm_group(all, &everyone));
  MPI_CHECK(MPI_Group_incl(everyone, group.size, group.world.data(), &members));
  MPI_Comm made = MPI_COMM_NULL;
  MPI_CHECK(MPI_Comm_create_group(all, members, static_cast<int>(group.axes), &made));
  MPI_Group_free(&members);
  MPI_Group_free(&everyone);
  return OwnedComm(made);
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
  if (options.path == CommunicatorPath::nccl) return make_on_gpus(std::move(comm), label, timeout, &world.handles().peers);

  if (fastest && options.node) {
    std::string reason;
    std::vector<int> members = members_on_node(world, comm.get(), group.size);
    if (!members.empty()) {
      if (auto made = make_shared_communicator(comm.get(), *options.node, members, label, timeout, reason)) return made;
      if (!reason.empty()) warning("the ranks of this node cannot share memory ({}): {} goes over MPI, which is slower", reason, label);
    }
  }
  return make_mpi_communicator(std::move(comm), label, timeout, &world.handles().peers);
}

}  // namespace tessera
