#include "topology/make_communicator.hpp"

#include "topology/mpi_communicator.hpp"
#include "topology/world_handles.hpp"

namespace tessera {

std::unique_ptr<Communicator> make_communicator(const World& world, const Mesh& mesh, Axis axis, const CommunicatorOptions& options) {
  TESSERA_REQUIRE(mesh.ranks() == world.ranks(), "a mesh of {} in a world of {}", mesh.ranks(), world.ranks());
  AxisGroup group = axis_group(mesh, axis, world.rank());
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_CHECK(MPI_Comm_split(world.handles().world.get(), group.colour, group.key, &comm));
  double timeout = options.timeout_seconds > 0 ? options.timeout_seconds : world.options().collective_timeout_seconds;
  return make_mpi_communicator(OwnedComm(comm), fmt::format("axis {}, lane {}", name_of(axis), options.lane), timeout);
}

}  // namespace tessera
