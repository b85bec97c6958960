#include "validation/smoke/probes.hpp"

#include <fmt/format.h>
#include <nccl.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/attention/cudnn_attention.hpp"
#include "kernels/cuda/cudnn_library.hpp"
#include "kernels/cuda/devices.hpp"
#include "kernels/cuda/streams.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "kernels/gemm/gemm.hpp"
#include "memory/runtime.hpp"
#include "topology/communicators/make_communicator.hpp"
#include "topology/devices/gpu_binding.hpp"
#include "validation/smoke/device_values.hpp"
#include "validation/smoke/kernels.hpp"

namespace tessera::smoke {
namespace {

using cuda::StreamKind, cuda::Streams;

void require(bool condition, const std::string& words) {
  if (!condition) throw Error(ExitCode::internal, words);
}

kernels::Context on(void* stream, std::span<std::byte> workspace = {}) { return {workspace, false, kernels::Backend::cuda, stream}; }

std::vector<bf16> whole_numbers(std::size_t n, std::size_t prime) {
  std::vector<bf16> out;
  for (std::size_t i = 0; i < n; ++i) out.emplace_back(static_cast<float>(static_cast<int>(i * prime % 31) - 15));
  return out;
}

// 1. A kernel of ours, and whose code the driver took for it.
std::string binary_version() {
  if (const std::string why = cuda::why_no_device(); !why.empty()) fail(ExitCode::environment, "there is no GPU on this machine ({})", why);
  cudaDeviceProp device{};
  TESSERA_CUDA_CHECK(cudaGetDeviceProperties(&device, 0));
  const int own = device.major * 10 + device.minor;
  const CodeVersions code = run_empty_kernel();
  const std::string text = fmt::format("{}, compute capability {}.{}: the kernel's code is sm_{}, its PTX {}", device.name, device.major,
                                       device.minor, code.binary, code.ptx);
  // Code of an earlier minor version runs as it is. Code of another major version was compiled from PTX, without what is Hopper's own.
  const bool good = device.major == 9 ? code.binary == 90 : code.binary / 10 == device.major && code.binary <= own;
  require(good, text + ", which is not this GPU's own");
  return text;
}

// 2. Kokkos, which may compile its PTX for this GPU. It lives on until the end of the process.
std::string kokkos_start() {
  static std::optional<KernelRuntime> runtime;
  const double begin = now_seconds();
  runtime.emplace(1, Spaces::host_and_gpu, 0);
  return fmt::format("started in {:.2f} s", now_seconds() - begin);
}

// 3.
std::string tensor_cores() {
  stage("mma.sync");
  check_warp_product();
  int major = 0;
  TESSERA_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  if (major != 9) return "mma.sync; not a Hopper GPU, so no wgmma";
  stage("wgmma");
  check_warpgroup_product();
  return "mma.sync and wgmma, 64 x 64 x 64";
}

// 4. The gradient of a weight: c (M, N) fp32 += a (K, M)^T b (K, N).
std::string cublaslt() {
  constexpr std::size_t M = 64, N = 128, K = 64;
  const std::vector<bf16> a = whole_numbers(K * M, 7), b = whole_numbers(K * N, 11);
  std::vector<float> want(M * N, 3);
  for (std::size_t k = 0; k < K; ++k)
    for (std::size_t m = 0; m < M; ++m)
      for (std::size_t n = 0; n < N; ++n) want[m * N + n] += static_cast<float>(a[k * M + m]) * static_cast<float>(b[k * N + n]);
  const DeviceValues<bf16> on_a(a), on_b(b);
  const DeviceValues<float> on_c(std::vector<float>(M * N, 3));
  const kernels::Gemm g{.c = on_c.data(),
                        .a = on_a.data(),
                        .b = on_b.data(),
                        .M = M,
                        .N = N,
                        .K = K,
                        .a_transposed = true,
                        .accumulate = true,
                        .in = DType::bf16,
                        .out = DType::f32};
  const DeviceValues<std::byte> workspace(std::vector<std::byte>(gemm_workspace_bytes(g, kernels::Backend::cuda) + 256));
  const Streams streams({StreamKind::usual});
  kernels::gemm(on(streams[0], {workspace.data(), gemm_workspace_bytes(g, kernels::Backend::cuda)}), g);
  require(on_c.host() == want, "sums of whole numbers are wrong");
  return "bf16 products added to fp32 sums";
}

// 5. A plan of cuDNN's and what it computes, beside our own kernels.
std::string cudnn() {
  if (const std::string& why = kernels::cuda::cudnn_library::why_not(); !why.empty()) throw Absent{why + "; attention is ours without it"};
  kernels::AttentionShape shape{.B = 1, .T = 128, .H = 2, .G = 1, .D = 64, .dtype = DType::bf16};
  const auto tokens = static_cast<std::size_t>(shape.T), outs = static_cast<std::size_t>(shape.T * shape.H * shape.D);
  std::vector<bf16> values;
  for (std::size_t i = 0; i < tokens * 4 * 64; ++i) values.emplace_back(std::sin(static_cast<float>(i * i % 1009)));
  const DeviceValues<bf16> qkv(values);
  std::vector<std::vector<bf16>> out;
  for (const auto path : {kernels::AttentionPath::cudnn, kernels::AttentionPath::native}) {
    shape.path = path;
    if (path == kernels::AttentionPath::cudnn) {
      stage("its plan");
      const std::string why = kernels::cuda::why_not_cudnn(shape, kernels::cuda::AttentionPass::forward);
      require(why.empty(), why);
    }
    stage(path == kernels::AttentionPath::cudnn ? "its run" : "our own kernels beside it");
    const DeviceValues<bf16> result(std::vector<bf16>(outs, bf16(0.0f)));
    const DeviceValues<float> lse(std::vector<float>(tokens * 2));
    const std::size_t bytes = attention_forward_workspace_bytes(shape, kernels::Backend::cuda);
    const DeviceValues<std::byte> workspace(std::vector<std::byte>(bytes + 256));
    const Streams streams({StreamKind::usual});
    kernels::attention_forward(
        on(streams[0], {workspace.data(), bytes}),
        {.out = result.data(), .lse = lse.data(), .qkv = packed_qkv(qkv.data(), shape), .shape = shape, .document_starts = nullptr});
    out.push_back(result.host());
  }
  float worst = 0;
  for (std::size_t i = 0; i < outs; ++i) worst = std::max(worst, std::abs(static_cast<float>(out[0][i]) - static_cast<float>(out[1][i])));
  require(worst <= 0.02f, fmt::format("its attention differs from ours by {:.3f}", worst));
  return fmt::format("{}: attention of one plan differs from ours by {:.4f} at most", kernels::cuda::cudnn_name(), worst);
}

/// Gives `issue` a lane of collectives, at once and then by a graph that is launched twice, and calls `check` after each.
void eager_then_captured(const std::string& what, const std::function<void(const Streams&)>& issue, const std::function<void()>& check) {
  const Streams streams({StreamKind::usual, StreamKind::urgent});
  stage((what + ", eager").c_str());
  issue(streams);
  cuda::synchronize(streams[1]);
  check();
  stage((what + ", captured").c_str());
  const std::unique_ptr<cuda::Graph> graph = streams.capture([&] {
    streams.fork();
    issue(streams);
    streams.join();
  });
  for (int times = 0; times < 2; ++times) {
    graph->launch(streams[0]);
    cuda::synchronize(streams[0]);
    check();
  }
}

void collectives_of(Communicator& communicator) {
  constexpr std::int64_t n = 1 << 16;
  std::vector<float> values(n);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const DeviceValues<float> from(values), gathered(values), scattered(values);
  const auto clear = [&] {
    for (const auto* each : {&gathered, &scattered}) TESSERA_CUDA_CHECK(cudaMemset(each->data(), 0, n * sizeof(float)));
    TESSERA_CUDA_CHECK(cudaDeviceSynchronize());
  };
  clear();
  eager_then_captured(
      "the communicator's collectives",
      [&](const Streams& streams) {
        communicator.all_gather(gathered.data(), from.data(), n, DType::f32, 0, on(streams[1]));
        communicator.reduce_scatter(scattered.data(), from.data(), n, DType::f32, 0, false, on(streams[1]));
        communicator.all_reduce(from.data(), n, DType::f32, Reduction::sum, on(streams[1]));
      },
      [&] {
        communicator.check(0);
        for (const auto* each : {&from, &gathered, &scattered}) require(each->host() == values, "values are wrong");
        clear();
      });
}

/// A communicator that is configured as ours, for the one call of a single rank that NCCL gives a kernel and its own thread: to itself.
class OwnSend {
 public:
  OwnSend() {
    ncclUniqueId id{};
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    require(ncclGetUniqueId(&id) == ncclSuccess, "ncclGetUniqueId failed");
    settle(ncclCommInitRankConfig(&comm_, 1, id, 0, &config));
  }
  ~OwnSend() {
    if (comm_) ncclCommAbort(comm_);
  }
  OwnSend(const OwnSend&) = delete;
  OwnSend& operator=(const OwnSend&) = delete;

  void run() {
    constexpr std::size_t n = 1 << 16;
    std::vector<float> values(n, 5);
    const DeviceValues<float> from(values), to(std::vector<float>(n, 0));
    eager_then_captured(
        "a send of a rank to itself",
        [&](const Streams& streams) {
          require(ncclGroupStart() == ncclSuccess, "ncclGroupStart failed");
          settle_later(ncclSend(from.data(), n, ncclFloat32, 0, comm_, streams[1]));
          settle_later(ncclRecv(to.data(), n, ncclFloat32, 0, comm_, streams[1]));
          settle(ncclGroupEnd());
        },
        [&] {
          require(to.host() == values, "values are wrong");
          TESSERA_CUDA_CHECK(cudaMemset(to.data(), 0, n * sizeof(float)));
          TESSERA_CUDA_CHECK(cudaDeviceSynchronize());
        });
  }

 private:
  void settle(ncclResult_t result) {
    while (result == ncclInProgress) {
      if (const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result); asked != ncclSuccess) result = asked;
      sched_yield();
    }
    settle_later(result);
  }
  void settle_later(ncclResult_t result) const {
    require(result == ncclSuccess || result == ncclInProgress,
            fmt::format("{}, {}", ncclGetErrorString(result), comm_ ? ncclGetLastError(comm_) : ""));
  }
  ncclComm_t comm_ = nullptr;
};

// 6. Errors are kept until MPI has ended: it would end the process while one is on its way.
std::string nccl() {
  stage("the start of MPI");
  std::string wrong;
  {
    Launch launch;
    World world(launch, 1);
    try {
      stage("the start of a communicator");
      bind_gpu(world, {}, true);
      const auto communicator =
          make_communicator(world, group_of({{1, 1, 1, 1, 1, 1}}, data_axes, 0), {.lane = "smoke", .path = CommunicatorPath::nccl});
      collectives_of(*communicator);
      OwnSend().run();
    } catch (const std::exception& error) {
      wrong = error.what();
    }
    if (wrong.empty()) stage("the end of MPI");
    world.finish();
    launch.end();
  }
  require(wrong.empty(), wrong);
  return "NCCL " + nccl_version() + ": a communicator of one rank, non-blocking, eager and captured";
}

// 7. A step's frame: streams that wait for each other over more tasks than events are kept, work of the host and a mark, all in one graph;
// and the same events used again behind it.
std::string capture() {
  constexpr std::int64_t tasks = Streams::ring + 44;
  const DeviceValues<float> one({1.0f}), x({0.0f}), y({0.0f});
  Streams streams({StreamKind::usual, StreamKind::usual, StreamKind::urgent});
  int calls = 0;
  cuda::HostCall call{.function = [](void* count) { ++*static_cast<int*>(count); }, .data = &calls};
  stage("its making");
  const std::unique_ptr<cuda::Graph> graph = streams.capture([&] {
    streams.fork();
    for (std::int64_t n = 1; n <= tasks; ++n) {
      kernels::add(on(streams[1]), x.data(), x.data(), one.data(), 1, DType::f32);
      streams.record(1, n);
      streams.wait(2, 1, n);
    }
    kernels::copy(on(streams[2]), y.data(), x.data(), sizeof(float));
    streams.call(2, call);
    streams.mark(2, 7);
    streams.join();
  });
  stage("its launches");
  for (int times = 1; times <= 2; ++times) {
    streams.clear_marks();
    streams.forget_calls();
    graph->launch(streams[0]);
    cuda::synchronize(streams[0]);
    const auto sum = static_cast<float>(times * tasks);
    require(x.host()[0] == sum && y.host()[0] == sum, fmt::format("{} of {} tasks were done in order", y.host()[0], sum));
    require(calls == times && streams.reached(2) == 7, "work of the host, or the mark behind it, was not done");
  }
  stage("its events behind it");
  streams.record(1, 1);
  streams.wait(2, 1, 1);
  cuda::synchronize(streams[2]);
  require(streams.done(1, 1), "an event of the graph cannot be used again");
  return fmt::format("a graph of {} tasks on three streams with work of the host, launched twice", tasks);
}

constexpr Probe all[] = {
    {"binary version", "the driver, and the kernels' code for this GPU",
     "nvidia-smi and the versions below: the driver must be of CUDA 13 or later, and the build of this GPU's architecture "
     "(CMAKE_CUDA_ARCHITECTURES)",
     binary_version},
    {"Kokkos start", "Kokkos, or the driver's compiler of PTX",
     "CUDA_CACHE_PATH must be writable; CUDA_DISABLE_PTX_JIT must not be set; seconds far above 1 are that compiler", kokkos_start},
    {"tensor cores", "our reading of the PTX ISA",
     "--part tests --only 'tests/kernel_(tensor_core|warpgroup)_cuda', which names the operand", tensor_cores},
    {"cuBLASLt", "cuBLASLt, or its version beside this driver", "its path below; --part tests --only tests/kernel_gemm_cuda", cublaslt},
    {"cuDNN", "cuDNN, or its version beside this driver", "its path below; kernels.attention = \"native\" does without it", cudnn},
    {"NCCL", "NCCL", "where captured calls alone fail: NCCL_GRAPH_REGISTER=0, else kernels.cuda_graph = \"off\"; otherwise NCCL_DEBUG=INFO",
     nccl},
    {"capture", "our streams under capture", "kernels.cuda_graph = \"off\" trains without; --part training compares both", capture},
};

}  // namespace

std::span<const Probe> probes() { return all; }

}  // namespace tessera::smoke
