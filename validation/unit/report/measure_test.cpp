// A profile that is measured, at sizes of no meaning: it is whole, can be read again, and a plan can be reckoned with it.
#include "report/measure.hpp"

#include <gtest/gtest.h>

#include "../model/random_models.hpp"
#include "../scratch.hpp"
#include "../topology/world_main.hpp"
#include "base/backend.hpp"
#include "schedule/simulate/prediction.hpp"
#ifdef TESSERA_CUDA
#include "kernels/cuda/devices.hpp"
#endif

namespace tessera {
namespace {

using testing::world;

TEST(Measure, MakesAProfileThatPlansCanUse) {
  const test::Scratch scratch;
  MeasureOptions options{.threads = 1, .device = RunDevice::automatic, .disks = {scratch.path()}};
  options.sizes = MeasureSizes{.tokens = {8, 16},
                               .features = {16, 32},
                               .lengths = {16},
                               .head_dims = {16},
                               .bytes = {1 << 12, 1 << 16},
                               .bench_bytes = 96 << 20,
                               .collective_bytes = 1 << 18,
                               .disk_bytes = 1 << 20};
  std::vector<std::string> parts;
  const MachineProfile measured = measure_machine(world(), options, [&](const std::string& what) { parts.push_back(what); });
  EXPECT_GE(parts.size(), 7u);
  if (world().rank() != 0) return;  // rank 0 prints
  const ParsedMachine parsed = parse_machine_text(print_machine(measured), "measured");
  std::string faults;
  for (const Fault& fault : parsed.faults) faults += fault.str() + "\n";
  ASSERT_EQ(faults, "") << print_machine(measured);
  const MachineProfile& m = parsed.profile;
  const bool gpu = m.device == "cuda";  // of the emulator too
  EXPECT_EQ(m.device, gpu ? "cuda" : "host");
  EXPECT_EQ(m.device_memory > 0, gpu);
  EXPECT_EQ(m.ranks_per_node, world().ranks());
  EXPECT_EQ(m.threads, gpu ? 0 : 1);
  EXPECT_GT(m.host_memory, 0);
  EXPECT_GT(m.disk.read, 0);
  EXPECT_EQ(m.node.all_gather > 0, world().ranks() > 1);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    EXPECT_EQ(m.rates(dtype).weight_gradient.rates.size(), 8u);
    EXPECT_EQ(m.rates(dtype).kernels.size(), std::size(memory_kernels));
  }
#ifdef TESSERA_CUDA
  EXPECT_EQ(m.fp8.given(), cuda::multiplies_fp8());
#else
  EXPECT_FALSE(m.fp8.given()) << "a host multiplies in the compute type";
#endif
  const Deck deck = test::tiny_deck({"run.device=" + m.device, "zero.stage=2", "zero.offload_optimizer.device=host"}, world().ranks());
  const Mesh mesh = make_mesh(deck, world().ranks());
  const BuildRequest request = request_for(deck, mesh, 0, Purpose::training);
  const Schedule schedule = build_schedule(request);
  const Prediction p = predict(request, schedule, place(schedule), m, {.mesh = mesh, .ranks_per_node = world().ranks()});
  EXPECT_GT(p.step.seconds, 0);
  EXPECT_LE(p.mfu_causal, 1);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::testing::run_tests(argc, argv); }
