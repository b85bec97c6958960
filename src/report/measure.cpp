#include "report/measure.hpp"

#include "base/backend.hpp"
#include "memory/runtime.hpp"
#include "report/measure_kernels.hpp"
#include "report/measure_links.hpp"
#include "report/surroundings.hpp"
#include "topology/devices/binding.hpp"
#include "topology/devices/gpu_binding.hpp"
#include "train/engine/device.hpp"
#ifdef TESSERA_CUDA
#include "kernels/cuda/devices.hpp"
#endif

namespace tessera {
namespace {

std::int64_t device_bytes() {
#ifdef TESSERA_CUDA
  return static_cast<std::int64_t>(cuda::free_memory() + cuda::used_memory());
#else
  return 0;
#endif
}

bool has_fp8_products() {
#ifdef TESSERA_CUDA
  return cuda::multiplies_fp8();
#else
  return false;
#endif
}

/// Of a node's cores: what each of its ranks reaches beside the others.
void measure_host(const MachineProfile& measured, MachineProfile& profile) {
  const auto of = [&](const char* kernel) {
    return rounded(measured.fp32.kernels.find(kernel)->second.rates.back() * static_cast<double>(profile.ranks_per_node));
  };
  profile.host = {.adamw = of("adamw"), .stream = of("sum_of_squares")};
}

}  // namespace

MeasureSizes sizes_for(RunDevice device) {
  constexpr std::int64_t mib = 1 << 20;
  if (device == RunDevice::cuda)
    return {.tokens = {512, 4096},
            .features = {1024, 8192},
            .lengths = {2048, 8192},
            .head_dims = {64, 128},
            .bytes = {1 << 21, 1 << 27},
            .bench_bytes = 2048 * mib,
            .collective_bytes = 128 * mib,
            .disk_bytes = 512 * mib};
  return {.tokens = {64, 256, 1024},
          .features = {256, 1024, 4096},
          .lengths = {128, 512, 2048},
          .head_dims = {32, 64, 128},
          .bytes = {1 << 14, 1 << 18, 1 << 22, 1 << 25},
          .bench_bytes = 384 * mib,
          .collective_bytes = 16 * mib,
          .disk_bytes = 512 * mib};
}

MachineProfile measure_machine(const World& world, const MeasureOptions& options, const std::function<void(const std::string&)>& progress) {
  MachineProfile profile;
  const RunDevice device = choose_device(options.device);
  profile.device = word_of(device);
  const bool gpu = device == RunDevice::cuda;
  const Binding binding = bind_process(world);
  const int threads = options.threads > 0 ? options.threads : binding.threads;
  const GpuBinding bound = gpu ? bind_gpu(world, binding, false) : GpuBinding{};
  const KernelRuntime runtime(threads, spaces_of(device), bound.device);
  profile.ranks_per_node = world.place().local_ranks;
  profile.threads = gpu ? 0 : threads;
  const auto counted = [](std::int64_t n, const char* what) { return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s"); };
  profile.name =
      fmt::format("{}, {} of {}", processor_name(), counted(profile.ranks_per_node, "rank"), gpu ? "a GPU" : counted(threads, "thread"));
  profile.host_memory = static_cast<std::int64_t>(node_memory().total);
  const MeasureSizes sizes = options.sizes.value_or(sizes_for(device));
  const kernels::Backend backend = gpu ? kernels::Backend::cuda : kernels::Backend::host;
  {
    if (gpu) profile.device_memory = device_bytes();
    Bench bench(world, backend, static_cast<std::size_t>(sizes.bench_bytes));
    profile.least_call = measure_call(bench);
    profile.task_overhead = gpu ? profile.least_call : measure_task_overhead();
    for (const DType dtype : {DType::bf16, DType::f32}) profile.rates(dtype) = measure_compute(bench, sizes, dtype, progress);
    // A host widens codes and multiplies in the compute type: its rates are those.
    if (gpu && has_fp8_products()) progress("products in fp8"), profile.fp8 = measure_codes(bench, sizes);
    progress("copies and collectives");
    measure_transfer(bench, sizes.collective_bytes, profile);
    measure_collectives(bench, sizes.collective_bytes, profile);
  }
  if (gpu) {
    progress("the host's cores");
    const MeasureSizes of_host = options.sizes.value_or(sizes_for(RunDevice::host));
    Bench bench(world, kernels::Backend::host, static_cast<std::size_t>(of_host.bench_bytes));
    MachineProfile host;
    host.fp32 = measure_passes(bench, of_host, DType::f32);
    measure_host(host, profile);
  } else {
    measure_host(profile, profile);
  }
  if (!options.disks.empty()) progress("disks");
  measure_disks(world, options.disks, sizes.disk_bytes, profile);
  return profile;
}

}  // namespace tessera
