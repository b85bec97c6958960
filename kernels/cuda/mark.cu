// One thread writes eight bytes over the bus. Nobody waits for it.
#include "kernels/cuda/mark.hpp"

#include "kernels/cuda/device.hpp"

namespace tessera::cuda {
namespace {
__global__ void mark_kernel(std::int64_t* to, std::int64_t value) { *static_cast<volatile std::int64_t*>(to) = value; }
}  // namespace

void mark(cudaStream_t stream, std::int64_t* to, std::int64_t value) { launch(stream, 1, 1, 0, mark_kernel, to, value); }

}  // namespace tessera::cuda
