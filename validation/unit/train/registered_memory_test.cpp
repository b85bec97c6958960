// The engine's memory is registered with both communicators: every collective of a step uses registered buffers, on all ranks, at every
// stage; and a run whose memory cannot be registered is the same run.
#include <gtest/gtest.h>

#include "../model/random_models.hpp"
#include "../topology/world_main.hpp"
#include "base/backend.hpp"
#include "kernels/cuda/devices.hpp"
#include "memory/runtime.hpp"
#include "topology/communicators/make_communicator.hpp"
#include "topology/devices/gpu_binding.hpp"
#include "train/engine/device.hpp"
#include "train/engine/engine.hpp"

#ifdef TESSERA_EMULATED_GPU
#include <emulator.hpp>
#endif

namespace tessera {
namespace {

using testing::world;

std::unique_ptr<Engine> make_engine(int stage) {
  const Deck deck = test::tiny_deck(
      {"run.device=cuda", "batch.global=8", "model.width=64", "zero.param_persistence_threshold=100", fmt::format("zero.stage={}", stage)},
      world().ranks());
  const Mesh mesh = make_mesh(deck, world().ranks());
  RunPlan plan = plan_run(request_for(deck, mesh, world().rank(), Purpose::training));
  RankLinks links{.communicators =
                      make_communicators(world(), mesh, wanted_communicators(plan.schedule), {.path = CommunicatorPath::nccl})};
  auto engine = std::make_unique<Engine>(std::move(plan), EngineOptions{}, std::move(links));
  engine->initialise_weights();
  return engine;
}

std::vector<double> losses(Engine& engine) {
  std::vector<double> result;
  for (std::int64_t step = 0; step < 3; ++step) {
    for (std::int64_t m = 0; m < engine.accumulation(); ++m)
      for (std::size_t i = 0; i < engine.tokens(m).size(); ++i)
        engine.tokens(m)[i] = static_cast<std::int32_t>((i * 7 + static_cast<std::size_t>(m + world().rank())) % 61),
        engine.targets(m)[i] = static_cast<std::int32_t>(i * 5 % 61);
    result.push_back(engine.step().loss);
  }
  return result;
}

class RegisteredMemoryAt : public ::testing::TestWithParam<int> {};

TEST_P(RegisteredMemoryAt, HoldsEveryBufferOfEveryCollective) {
  auto engine = make_engine(GetParam());
#ifdef TESSERA_EMULATED_GPU
  EXPECT_EQ(emulator::nccl_buffers().registrations, GetParam() == 0 ? 1 : 2) << "one a communicator: stage 0 gathers nothing";
  const emulator::NcclBuffers before = emulator::nccl_buffers();
#endif
  const std::vector<double> with = losses(*engine);
  EXPECT_GT(with.front(), with.back());
#ifdef TESSERA_EMULATED_GPU
  EXPECT_GT(emulator::nccl_buffers().registered, before.registered);
  EXPECT_EQ(emulator::nccl_buffers().unregistered, before.unregistered);
  engine.reset();
  EXPECT_EQ(emulator::nccl_buffers().registrations, 0);
  emulator::refuse_nccl_registration(true);
  engine = make_engine(GetParam());
  emulator::refuse_nccl_registration(false);
  EXPECT_EQ(losses(*engine), with) << "without registration";
  EXPECT_GT(emulator::nccl_buffers().unregistered, before.unregistered);
#endif
}

INSTANTIATE_TEST_SUITE_P(Stages, RegisteredMemoryAt, ::testing::Values(0, 1, 2, 3));

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (tessera::cuda::device_count() == 0) {
    fmt::print("skipped: no GPU\n");
    return 77;
  }
  std::optional<tessera::KernelRuntime> runtime;
  return tessera::testing::run_tests(argc, argv, [&](const tessera::World& world) {
    const tessera::GpuBinding gpu = tessera::bind_gpu(world, {}, true);
    runtime.emplace(1, tessera::Spaces::host_and_gpu, gpu.device);
  });
}
