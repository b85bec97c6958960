#include "train/engine/program_identity.hpp"

#include "kernels/libraries/libraries.hpp"
#include "topology/world.hpp"

namespace tessera {

const Identity& program_identity() {
  static const Identity identity = [] {
    Identity fields = program_fields();
    fields.push_back({"MPI", mpi_version()});
    fields.push_back({"oneDNN", kernels::onednn_version()});
    fields.push_back({"oneDNN instructions", kernels::onednn_instructions(), true});
    if (const std::string cuda = kernels::cuda_libraries(); !cuda.empty()) fields.push_back({"GPU libraries", cuda});
    if (const std::string nccl = nccl_version(); !nccl.empty()) fields.push_back({"NCCL", nccl});
    return fields;
  }();
  return identity;
}

}  // namespace tessera
