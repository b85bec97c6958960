// Products beside a kernel that holds multiprocessors as a gather's does: what it costs them, and what it costs to leave it room. The
// kernel copies memory by 8 or 16 blocks, each on a multiprocessor of its own, so that one GPU is enough.
#include <algorithm>
#include <string>

#include "device_benchmark.hpp"
#include "kernels/cuda/device.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/gemm/room.hpp"

namespace tessera::benchmarks {
namespace {

using namespace kernels;

constexpr int copy_threads = 512, products = 8;
constexpr double block_rate = 20e9;  // bytes/s that a block copies, about: copies end before the products

__global__ void copy_by_few_blocks(uint4* to, const uint4* from, std::int64_t n) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) to[i] = from[i];
}

/// A stream of its own, on which such a copy begins with what it runs beside.
struct Beside {
  cudaStream_t stream = nullptr;
  cudaEvent_t begun = nullptr, done = nullptr;
  uint4 *to, *from;
  std::int64_t n;

  Beside(Part& part, double seconds, int blocks, std::int64_t mib)
      : n(std::min(static_cast<std::int64_t>(seconds * block_rate * blocks), mib << 20) / 16) {
    int least = 0, greatest = 0;
    TESSERA_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    TESSERA_CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
    for (cudaEvent_t* event : {&begun, &done}) TESSERA_CUDA_CHECK(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
    to = static_cast<uint4*>(part.bytes(static_cast<std::size_t>(n) * 16)),
    from = static_cast<uint4*>(part.bytes(static_cast<std::size_t>(n) * 16));
  }
  void begin(cudaStream_t products, int blocks) const {
    TESSERA_CUDA_CHECK(cudaEventRecord(begun, products));
    TESSERA_CUDA_CHECK(cudaStreamWaitEvent(stream, begun, 0));
    // So much shared memory that no block of a product fits on the multiprocessor.
    tessera::cuda::launch(stream, static_cast<unsigned>(blocks), copy_threads, 90 << 10, copy_by_few_blocks, to,
                          static_cast<const uint4*>(from), n);
    TESSERA_CUDA_CHECK(cudaEventRecord(done, stream));
  }
  void join(cudaStream_t products) const { TESSERA_CUDA_CHECK(cudaStreamWaitEvent(products, done, 0)); }
};

void add_room(Part& part, const Settings& s) {
  Gemm g{.M = s.tokens, .N = s.width, .K = s.width, .b_transposed = true, .in = DType::bf16, .out = DType::bf16};
  g.a = part.values(g.M * g.K, g.in), g.b = part.values(g.N * g.K, g.in), g.c = part.values(g.M * g.N, g.out);
  const std::size_t bytes = gemm_workspace_bytes(g, Backend::cuda);
  void* workspace = part.bytes(bytes);
  const auto run = [=](cudaStream_t stream, int room) {
    const RoomBeside beside(room);
    for (int i = 0; i < products; ++i) gemm(on(stream, workspace, bytes), g);
  };
  const std::string alone = std::to_string(products) + " products alone";
  const double flops = products * 2.0 * static_cast<double>(g.M) * static_cast<double>(g.N) * static_cast<double>(g.K);
  const auto add = [&](const std::string& name, double target, std::function<void(cudaStream_t)> call) {
    part.contenders.push_back(
        {.name = name, .limit = name == alone ? "" : alone, .amount = flops, .flops = true, .target = target, .run = std::move(call)});
  };
  add(alone, 0, [=](cudaStream_t stream) { run(stream, 0); });
  time_once(nullptr, part.contenders.back().run);
  const double seconds = time_once(nullptr, part.contenders.back().run);
  for (const int blocks : {8, 16}) {
    add(alone + " that leave " + std::to_string(blocks) + " multiprocessors", 0, [=](cudaStream_t stream) { run(stream, blocks); });
    const Beside beside(part, seconds / 2, blocks, s.mib);
    for (const int room : {0, blocks})
      add(std::to_string(products) + " products, half of them beside " + std::to_string(blocks) + " blocks, that leave " +
              (room > 0 ? "them room" : "none"),
          0, [=](cudaStream_t stream) {
            beside.begin(stream, blocks);
            run(stream, room);
            beside.join(stream);
          });
  }
}

}  // namespace

std::vector<Group> room_groups() { return {{"room", add_room}}; }

}  // namespace tessera::benchmarks
