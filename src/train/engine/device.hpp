// Whether a run works on the host or on a GPU: what run.device = "auto" becomes, and what is said where there is no GPU.
#pragma once
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "memory/runtime.hpp"
#include "model/table/shape.hpp"
#include "topology/world.hpp"

namespace tessera {

/// Whether this build has kernels for GPUs.
bool has_gpu_backend();

/// Host or cuda for one process: what was asked for, or for automatic a GPU where one is seen. Throws Error(environment) where cuda was
/// asked for and there is no GPU, with the cause and what to set.
RunDevice choose_device(RunDevice asked);
/// The same for the ranks of a run, whose deck then says what was chosen. Collective; all ranks choose alike.
void choose_device(const World& world, ParsedDeck& parsed);
/// What Kokkos must start for a device.
Spaces spaces_of(RunDevice device);
/// Throws Error(environment) with the reason where attention is to be cuDNN's and cuDNN cannot run this shape here.
void require_attention(const ModelShape& shape);
/// The same where products are to be in fp8 and this GPU has none.
void require_fp8(const ModelShape& shape);
/// The same where products of the host, as this model multiplies, are not what they are defined as: a library's fault.
void require_true_products(const ModelShape& shape, bool reproducible);
/// Lines that say whose attention runs on a GPU; none on the host.
std::vector<std::string> describe_attention(const ModelShape& shape);

/// What bits depend on beside program and deck: of a GPU its model, its multiprocessors and the libraries' versions; of the host the
/// instructions of its products.
std::string describe_hardware(RunDevice device);

/// Bytes of this process's GPU that anyone uses.
std::int64_t used_device_memory();
/// Returns when a GPU has done all that this process gave it; at once on the host.
void wait_for_device(kernels::Backend backend);

}  // namespace tessera
