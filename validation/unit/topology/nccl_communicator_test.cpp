// Collectives between GPUs against those of the host on the same values: types, odd counts, strides, in place, accumulation; and how a wait
// for a stream ends. On a GPU, or in the emulator.
#include "topology/communicators/nccl_communicator.hpp"
#include "base/backend.hpp"

#include <cstring>
#include <functional>
#include <vector>

#include "base/clock.hpp"
#include "kernels/cuda/devices.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/streams.hpp"
#include "topology/communicators/make_communicator.hpp"
#include "topology/devices/gpu_binding.hpp"
#include "validation/device_fault.hpp"
#include "world_main.hpp"

#ifdef TESSERA_EMULATED_GPU
#include <emulator.hpp>
#endif

namespace tessera {
namespace {

using testing::world;

/// All ranks.
Group all_dp() { return group_of({{1, 1, world().ranks(), 1, 1, 1}}, data_axes, world().rank()); }

struct Stream {
  cudaStream_t stream = nullptr;
  Stream() { TESSERA_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream); }
  kernels::Context context(std::span<std::byte> workspace = {}, bool reproducible = false) const {
    return {workspace, reproducible, kernels::Backend::cuda, stream};
  }
  /// As an executor waits.
  void wait(Communicator& comm) const {
    for (const double begin = now_seconds(); cudaStreamQuery(stream) == cudaErrorNotReady;) comm.check(now_seconds() - begin);
    TESSERA_CUDA_CHECK(cudaStreamSynchronize(stream));
  }
};

/// Values in device memory.
template <class T>
struct Values {
  std::size_t count;
  T* data = nullptr;
  explicit Values(const std::vector<T>& from) : count(from.size()) {
    TESSERA_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&data), count * sizeof(T)));
    TESSERA_CUDA_CHECK(cudaMemcpy(data, from.data(), count * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~Values() { cudaFree(data); }
  Values(const Values&) = delete;
  std::vector<T> host() const {
    std::vector<T> values(count);
    TESSERA_CUDA_CHECK(cudaMemcpy(values.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }
};

template <class T>
std::vector<T> values(std::int64_t n, int salt) {
  std::vector<T> out;
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint64_t x =
        (static_cast<std::uint64_t>(i) * 64 + static_cast<std::uint64_t>(world().rank())) * 64 + static_cast<std::uint64_t>(salt);
    x = (x ^ (x >> 31)) * 0x94d049bb133111ebu;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
    if constexpr (std::is_same_v<T, std::int64_t>)
      out.push_back(static_cast<T>(x));  // sums wrap
    else
      out.push_back(T(static_cast<float>(static_cast<std::int32_t>(x >> 32)) * 0x1p-31f));
  }
  return out;
}

/// Integers and copies bit for bit; float sums as far as their order may differ from the host's, bf16 and fp16 where they are rounded on
/// the way.
template <class T>
void expect_near(const std::vector<T>& got, const std::vector<T>& expected, bool sums, const std::string& what) {
  const double bound = !sums || std::is_same_v<T, std::int64_t> ? 0 : sizeof(T) == 4 ? 1e-6 : std::is_same_v<T, bf16> ? 0.03 : 0.004;
  for (std::size_t i = 0; i < got.size(); ++i) {
    bool same = std::memcmp(&got[i], &expected[i], sizeof(T)) == 0;
    if constexpr (!std::is_same_v<T, std::int64_t>)
      same |= std::abs(static_cast<double>(static_cast<float>(got[i])) - static_cast<double>(static_cast<float>(expected[i]))) <=
              bound * world().ranks();
    if (!same) {
      ADD_FAILURE() << what << ": element " << i << " of " << got.size() << " differs";
      return;
    }
  }
}

struct Pair {
  std::unique_ptr<Communicator> host = make_communicator(world(), all_dp(), {.path = CommunicatorPath::mpi}),
                                device = make_communicator(world(), all_dp(), {.lane = "reduce", .path = CommunicatorPath::nccl});
  Stream stream;

  /// Does `call` on host and device with the same two buffers, and compares both.
  template <class T>
  void expect_same(const std::vector<T>& a, const std::vector<T>& b, bool sums, const std::string& what,
                   const std::function<void(Communicator&, T* a, T* b, const kernels::Context&)>& call, std::int64_t workspace_bytes = 0,
                   bool reproducible = false) {
    std::vector<T> host_a = a, host_b = b;
    call(*host, host_a.data(), host_b.data(), {});
    const Values<T> device_a(a), device_b(b);
    const Values<std::byte> workspace(std::vector<std::byte>(static_cast<std::size_t>(std::max<std::int64_t>(workspace_bytes, 1))));
    call(*device, device_a.data, device_b.data, stream.context({workspace.data, static_cast<std::size_t>(workspace_bytes)}, reproducible));
    stream.wait(*device);
    const std::string full = fmt::format("{} of {}", what, name_of(dtype_of<T>()));
    expect_near(device_a.host(), host_a, sums, full);
    expect_near(device_b.host(), host_b, sums, full);
  }
};

template <class T>
void check_moves(Pair& pair, std::int64_t count, std::int64_t stride) {
  const std::int64_t apart = stride ? stride : count, all = apart * (world().ranks() - 1) + count + 3, mine = world().rank() * apart;
  const std::string text = fmt::format(" {} stride {}", count, stride);
  pair.expect_same<T>(values<T>(all, 1), values<T>(count, 2), false, "all_gather" + text,
                      [&](Communicator& c, T* recv, T* send, auto& on) { c.all_gather(recv, send, count, dtype_of<T>(), stride, on); });
  pair.expect_same<T>(values<T>(all, 1), std::vector<T>(1), false, "all_gather in place" + text,
                      [&](Communicator& c, T* recv, T*, auto& on) { c.all_gather(recv, recv + mine, count, dtype_of<T>(), stride, on); });
}

template <class T>
void check_exchange(Pair& pair, std::int64_t count, std::int64_t times) {
  const std::int64_t all = times * world().ranks() * count;
  pair.expect_same<T>(values<T>(all + 3, 1), values<T>(all, 2), false, fmt::format("all_to_all {} x {}", count, times),
                      [&](Communicator& c, T* recv, T* send, auto& on) { c.all_to_all(recv, send, count, dtype_of<T>(), times, on); });
}

template <class T>
void check_rotate(Pair& pair, std::int64_t count, int by) {
  pair.expect_same<T>(values<T>(count + 3, 1), values<T>(count, 2), false, fmt::format("rotate {} by {}", count, by),
                      [&](Communicator& c, T* recv, T* send, auto& on) { c.rotate(recv, send, count, dtype_of<T>(), by, on); });
}

/// Reproducible ones bit for bit: NCCL's own order, which changes from call to call here, is not taken.
template <class T>
void check_scatter(Pair& pair, std::int64_t count, std::int64_t stride, bool accumulate, bool reproducible) {
  const std::int64_t apart = stride ? stride : count, all = apart * (world().ranks() - 1) + count + 3, mine = world().rank() * apart;
  const std::int64_t workspace =
      reduce_scatter_workspace_bytes(kernels::Backend::cuda, {world().ranks(), count, dtype_of<T>(), accumulate, reproducible});
  const std::string text =
      fmt::format(" {} stride {}{}{}", count, stride, accumulate ? " accumulated" : "", reproducible ? " in order" : "");
  pair.expect_same<T>(
      values<T>(count, 3), values<T>(all, 4), !reproducible, "reduce_scatter" + text,
      [&](Communicator& c, T* recv, T* send, auto& on) { c.reduce_scatter(recv, send, count, dtype_of<T>(), stride, accumulate, on); },
      workspace, reproducible);
  // In place the other ranks' blocks of the buffer are free to change: only the result is looked at.
  std::vector<T> host = values<T>(all, 4);
  const Values<T> device(host);
  const Values<std::byte> space(std::vector<std::byte>(static_cast<std::size_t>(std::max<std::int64_t>(workspace, 1))));
  pair.host->reduce_scatter(host.data() + mine, host.data(), count, dtype_of<T>(), stride, accumulate);
  pair.device->reduce_scatter(device.data + mine, device.data, count, dtype_of<T>(), stride, accumulate,
                              pair.stream.context({space.data, static_cast<std::size_t>(workspace)}, reproducible));
  pair.stream.wait(*pair.device);
  const std::vector<T> got = device.host();
  expect_near<T>({got.begin() + mine, got.begin() + mine + count}, {host.begin() + mine, host.begin() + mine + count}, !reproducible,
                 "reduce_scatter in place" + text);
}

template <class T>
void check_all(Pair& pair) {
  for (std::int64_t count : {1, 7, 255, 5000})
    for (std::int64_t stride : {std::int64_t{0}, count + 5}) {
      check_moves<T>(pair, count, stride);
      for (bool accumulate : {false, true})
        for (bool reproducible : {false, true}) check_scatter<T>(pair, count, stride, accumulate, reproducible);
    }
  for (std::int64_t count : {1, 7, 5000}) {
    for (std::int64_t times : {1, 3}) check_exchange<T>(pair, count, times);
    for (int by = 1; by < world().ranks() || by == 1; ++by) check_rotate<T>(pair, count, by);
  }
  for (Reduction reduction : {Reduction::sum, Reduction::max})
    pair.expect_same<T>(values<T>(1013, 5), std::vector<T>(1), reduction == Reduction::sum, "all_reduce",
                        [&](Communicator& c, T* buffer, T*, auto& on) { c.all_reduce(buffer, 1013, dtype_of<T>(), reduction, on); });
  for (int root = 0; root < world().ranks(); ++root)
    pair.expect_same<T>(values<T>(77, 6), std::vector<T>(1), false, "broadcast",
                        [&](Communicator& c, T* buffer, T*, auto& on) { c.broadcast(buffer, 77, dtype_of<T>(), root, on); });
}

TEST(NcclCommunicator, EveryCollectiveIsThatOfTheHost) {
  Pair pair;
  EXPECT_EQ(pair.device->path(), "nccl");
  EXPECT_EQ(pair.device->size(), world().ranks());
  EXPECT_EQ(pair.device->rank(), world().rank());
  check_all<float>(pair);
  check_all<bf16>(pair);
  check_all<f16>(pair);
  check_all<std::int64_t>(pair);
  pair.device->barrier();
}

#ifdef TESSERA_EMULATED_GPU
TEST(NcclCommunicator, BlocksAreThoseThatWereAskedFor) {
  const auto made = [](int most_blocks) {
    const auto comm = make_communicator(world(), all_dp(), {.lane = "gather", .path = CommunicatorPath::nccl, .most_blocks = most_blocks});
    return emulator::nccl_most_blocks();
  };
  EXPECT_EQ(made(16), 16);
  EXPECT_EQ(made(0), 0) << "as NCCL likes";
}
#endif

TEST(NcclCommunicator, CollectivesOfTwoLanesAreUnderWayTogether) {
  Pair first, second;
  const auto a = values<std::int64_t>(4097, 1), b = values<std::int64_t>(4097, 2);
  const Values<std::int64_t> one(a), two(b);
  first.device->all_reduce(one.data, 4097, DType::i64, Reduction::sum, first.stream.context());
  second.device->all_reduce(two.data, 4097, DType::i64, Reduction::sum, second.stream.context());
  // Waited for in another order than issued.
  second.stream.wait(*second.device);
  first.stream.wait(*first.device);
  auto host_a = a, host_b = b;
  first.host->all_reduce(host_a.data(), 4097, DType::i64);
  first.host->all_reduce(host_b.data(), 4097, DType::i64);
  EXPECT_EQ(one.host(), host_a);
  EXPECT_EQ(two.host(), host_b);
}

/// Sums a vector of each rank in device memory; whether the sum is the host's.
bool sums_as_the_host(Pair& pair, std::int64_t* at, std::int64_t n) {
  auto host = values<std::int64_t>(n, 8);
  TESSERA_CUDA_CHECK(cudaMemcpy(at, host.data(), host.size() * sizeof(std::int64_t), cudaMemcpyHostToDevice));
  pair.device->all_reduce(at, n, DType::i64, Reduction::sum, pair.stream.context());
  pair.stream.wait(*pair.device);
  pair.host->all_reduce(host.data(), n, DType::i64);
  std::vector<std::int64_t> got(host.size());
  TESSERA_CUDA_CHECK(cudaMemcpy(got.data(), at, got.size() * sizeof(std::int64_t), cudaMemcpyDeviceToHost));
  return got == host;
}

/// Buffers of collectives since the last question: inside and outside registered memory. On a GPU NCCL does not tell.
struct Seen {
  std::int64_t registered = 0, unregistered = 0;
  friend bool operator==(const Seen&, const Seen&) = default;
};
Seen seen() {
#ifdef TESSERA_EMULATED_GPU
  static emulator::NcclBuffers before;
  const emulator::NcclBuffers last = std::exchange(before, emulator::nccl_buffers());
  return {before.registered - last.registered, before.unregistered - last.unregistered};
#else
  return {};
#endif
}
void expect_seen(const Seen& expected) {
  [[maybe_unused]] const Seen got = seen();
#ifdef TESSERA_EMULATED_GPU
  EXPECT_TRUE(got == expected) << got.registered << " inside registered memory, " << got.unregistered << " outside";
#else
  static_cast<void>(expected);
#endif
}

TEST(NcclCommunicator, RegisteredMemoryGivesTheSameSums) {
  Pair pair;
  const Values<std::int64_t> memory(std::vector<std::int64_t>(1 << 16)), other(std::vector<std::int64_t>(1 << 10));
  seen();
  {
    const RegisteredMemory registered(*pair.device, std::as_writable_bytes(std::span(memory.data, memory.count)));
    EXPECT_TRUE(sums_as_the_host(pair, memory.data, 1 << 16));
    EXPECT_TRUE(sums_as_the_host(pair, memory.data + 4099, 1013));
    expect_seen({.registered = 4, .unregistered = 0});
    EXPECT_TRUE(sums_as_the_host(pair, other.data, 1 << 10));
    expect_seen({.registered = 0, .unregistered = 2});
    EXPECT_THROW(pair.device->register_memory(std::as_writable_bytes(std::span(other.data, other.count))), Error);
  }
  EXPECT_TRUE(sums_as_the_host(pair, memory.data, 1013));
  expect_seen({.registered = 0, .unregistered = 2});
  pair.device->register_memory(std::as_writable_bytes(std::span(memory.data, memory.count)));  // a second time, until the communicator ends
  EXPECT_TRUE(sums_as_the_host(pair, memory.data, 1013));
  expect_seen({.registered = 2, .unregistered = 0});
  pair.device.reset();
}

TEST(NcclCommunicator, RegisteredMemoryOutlivesAnAbortedCommunicator) {
  Pair pair;
  const Values<std::int64_t> memory(std::vector<std::int64_t>(1 << 10));
  const RegisteredMemory registered(*pair.device, std::as_writable_bytes(std::span(memory.data, memory.count)));
  EXPECT_TRUE(sums_as_the_host(pair, memory.data, 1 << 10));
  pair.device->abort();
}

/// What is thrown by a sum over all ranks and the wait for it, or an empty text.
std::string error_of_sum(const Values<float>& buffer, const Stream& stream, Communicator& comm) {
  try {
    comm.all_reduce(buffer.data, static_cast<std::int64_t>(buffer.count), DType::f32, Reduction::sum, stream.context());
    stream.wait(comm);
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ExitCode::lost);
    return error.what();
  }
  return "";
}

TEST(NcclCommunicator, AWaitForARankThatDoesNotComeEnds) {
  if (world().ranks() == 1) GTEST_SKIP() << "needs several ranks";
#ifdef TESSERA_EMULATED_GPU
  constexpr double limit = 3;
#else
  constexpr double limit = 10;  // which is for making the communicator and its connections too
#endif
  const int last = world().ranks() - 1;
  auto comm = make_communicator(world(), all_dp(), {.lane = "gather", .path = CommunicatorPath::nccl, .timeout_seconds = limit});
  const Stream stream;
  const Values<float> buffer(values<float>(64, 1));
  EXPECT_EQ(error_of_sum(buffer, stream, *comm), "");
  if (world().rank() != last) {
    const std::string what = error_of_sum(buffer, stream, *comm);
    EXPECT_NE(what.find("lane gather"), std::string::npos) << what;
    EXPECT_NE(what.find(fmt::format("rank {} on {} has waited", last, world().place().host)), std::string::npos) << what;
    comm->abort();
    EXPECT_EQ(cudaStreamSynchronize(stream.stream), cudaSuccess);  // ends, now that the collective has been given up
  }
  world().barrier();
  comm->abort();  // a good end needs the others
}

#ifdef TESSERA_EMULATED_GPU

// Some ranks with registered buffers and others without is what NCCL leaves undefined.
TEST(NcclCommunicator, MemoryThatOneRankCannotRegisterIsRegisteredOnNone) {
  Pair pair;
  const Values<std::int64_t> memory(std::vector<std::int64_t>(1 << 10));
  emulator::refuse_nccl_registration(world().rank() == world().ranks() - 1);
  {
    const RegisteredMemory registered(*pair.device, std::as_writable_bytes(std::span(memory.data, memory.count)));
    emulator::refuse_nccl_registration(false);
    EXPECT_EQ(emulator::nccl_buffers().registrations, 0);
    seen();
    EXPECT_TRUE(sums_as_the_host(pair, memory.data, 1 << 10));
    expect_seen({.registered = 0, .unregistered = 2});
  }
  pair.device->register_memory(std::as_writable_bytes(std::span(memory.data, memory.count)));
  EXPECT_EQ(emulator::nccl_buffers().registrations, 1);
  pair.device.reset();  // deregisters first, or its destruction would end the program
  EXPECT_EQ(emulator::nccl_buffers().registrations, 0);
}

TEST(NcclCommunicator, AnErrorOnItsWayEndsTheCommunicatorBeforeItsMemory) {
  Pair pair;
  try {
    const Values<std::int64_t> memory(std::vector<std::int64_t>(1 << 10));  // whose end refuses to free what is registered
    const RegisteredMemory registered(*pair.device, std::as_writable_bytes(std::span(memory.data, memory.count)));
    fail(ExitCode::storage, "the disk is full");
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ExitCode::storage);
  }
  EXPECT_EQ(emulator::nccl_buffers().registrations, 0);
}

TEST(NcclCommunicator, AnErrorThatComesLaterEndsTheWait) {
  if (world().ranks() == 1) GTEST_SKIP() << "needs several ranks";
  auto comm = make_communicator(world(), all_dp(), {.lane = "reduce", .path = CommunicatorPath::nccl});
  const Stream stream;
  const Values<float> buffer(values<float>(64, 1));
  comm->all_reduce(buffer.data, 64, DType::f32, Reduction::sum, stream.context());
  constexpr int system_error = 2, none = 0;
  emulator::set_nccl_error(system_error);
  std::string what;
  try {
    comm->check(0);
  } catch (const Error& error) {
    what = error.what();
  }
  emulator::set_nccl_error(none);
  EXPECT_NE(what.find("a collective failed on rank"), std::string::npos) << what;
  EXPECT_NE(what.find("lane reduce"), std::string::npos) << what;
  stream.wait(*comm);
}

TEST(NcclCommunicator, TwoRanksOfAHostOnOneGpuAreRefusedByNccl) {
  if (world().ranks() == 1) GTEST_SKIP() << "needs several ranks";
  cuda::use_device(0);
  std::string what;
  try {
    make_communicator(world(), all_dp(), {.lane = "reduce", .path = CommunicatorPath::nccl});
  } catch (const Error& error) {
    what = error.what();
  }
  cuda::use_device(world().rank());
  EXPECT_NE(what.find("Duplicate GPU detected"), std::string::npos) << what;
  EXPECT_NE(what.find("lane reduce"), std::string::npos) << what;
}

TEST(NcclCommunicator, WhatDoesNotWaitForACollectiveFindsItUndone) {
  if (world().ranks() == 1) GTEST_SKIP() << "needs several ranks";
  Pair pair;
  const Values<std::int64_t> sum(std::vector<std::int64_t>(8, 1)), early(std::vector<std::int64_t>(8, 0)),
      late(std::vector<std::int64_t>(8, 0));
  const Stream other;
  pair.device->all_reduce(sum.data, 8, DType::i64, Reduction::sum, pair.stream.context());
  cudaEvent_t event = nullptr;
  TESSERA_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  TESSERA_CUDA_CHECK(cudaEventRecord(event, pair.stream.stream));
  TESSERA_CUDA_CHECK(cudaMemcpyAsync(early.data, sum.data, 64, cudaMemcpyDeviceToDevice, other.stream));
  TESSERA_CUDA_CHECK(cudaStreamWaitEvent(other.stream, event, 0));
  TESSERA_CUDA_CHECK(cudaMemcpyAsync(late.data, sum.data, 64, cudaMemcpyDeviceToDevice, other.stream));
  other.wait(*pair.device);
  pair.stream.wait(*pair.device);
  EXPECT_EQ(early.host(), std::vector<std::int64_t>(8, 1));
  EXPECT_EQ(late.host(), std::vector<std::int64_t>(8, world().ranks()));
  cudaEventDestroy(event);
}

// NCCL need not order them then (NCCL_GRAPH_MIXING_SUPPORT), so nothing would.
TEST(NcclCommunicator, ACallBesideAGraphOfTheSameCommunicatorIsRefused) {
  if (world().ranks() == 1) GTEST_SKIP() << "needs several ranks";
  setenv("NCCL_GRAPH_MIXING_SUPPORT", "0", 1);
  Pair pair;
  const Values<std::int64_t> sum(std::vector<std::int64_t>(8, 1));
  const cuda::Streams streams({cuda::StreamKind::usual});
  kernels::Context context;
  context.stream = streams[0];
  pair.device->all_reduce(sum.data, 8, DType::i64, Reduction::sum, context);
  cuda::synchronize(streams[0]);
  const auto graph = streams.capture([&] { pair.device->all_reduce(sum.data, 8, DType::i64, Reduction::sum, context); });
  graph->launch(streams[0]);
  EXPECT_THROW(pair.device->all_reduce(sum.data, 8, DType::i64, Reduction::sum, context), Error);
  cuda::synchronize(streams[0]);
  pair.device->all_reduce(sum.data, 8, DType::i64, Reduction::sum, context);
  cuda::synchronize(streams[0]);
  std::int64_t expected = 1;
  for (int i = 0; i < 3; ++i) expected *= world().ranks();
  EXPECT_EQ(sum.host(), std::vector<std::int64_t>(8, expected));
  unsetenv("NCCL_GRAPH_MIXING_SUPPORT");
}

#endif

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (tessera::cuda::device_count() == 0) {
    fmt::print("skipped: no GPU\n");
    return 77;
  }
  return tessera::testing::run_tests(argc, argv, [](const tessera::World& world) {
    tessera::bind_gpu(world, {}, true);
    if (world.ranks() == 1) tessera::find_device_fault = tessera::device_fault;  // of several, the others would wait for one that stops
  });
}
