#include "machine/keys.hpp"

#include <fmt/format.h>

#include <cmath>

#include "base/check.hpp"

namespace tessera {

double decltype(MachineProfile::power)::slowdown() const { return limit > 0 ? std::pow(rated / limit, exponent) : 1; }

ComputeRates MachineProfile::*MachineProfile::rates_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return &MachineProfile::fp32;
    case DType::bf16:
      return &MachineProfile::bf16;
    case DType::f16:
      return &MachineProfile::fp16;
    case DType::e4m3:
      return &MachineProfile::fp8;
    case DType::i64:
    case DType::u16:
    case DType::u32:
    case DType::e5m2:
      break;
  }
  fail(ExitCode::internal, "a machine's rates of {}", name_of(dtype));
}

namespace {

using enum MachineValue;

constexpr MachineUnit byte_units[] = {{"TB", 1e12},          {"GB", 1e9},        {"MB", 1e6},     {"KB", 1e3}, {"TiB", 1099511627776.0},
                                      {"GiB", 1073741824.0}, {"MiB", 1048576.0}, {"KiB", 1024.0}, {"B", 1}};
constexpr MachineUnit time_units[] = {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}};
constexpr MachineUnit flops_units[] = {{"PFLOP/s", 1e15}, {"TFLOP/s", 1e12}, {"GFLOP/s", 1e9}, {"MFLOP/s", 1e6}, {"FLOP/s", 1}};
constexpr MachineUnit watt_units[] = {{"kW", 1e3}, {"W", 1}};
constexpr MachineUnit traffic_units[] = {
    {"TB/s", 1e12},          {"GB/s", 1e9},        {"MB/s", 1e6},      {"KB/s", 1e3}, {"TiB/s", 1099511627776.0},
    {"GiB/s", 1073741824.0}, {"MiB/s", 1048576.0}, {"Gbit/s", 1.25e8}, {"B/s", 1}};

template <class F>
std::function<MachineField(MachineProfile&)> at(F f) {
  return [f](MachineProfile& p) { return MachineField{f(p)}; };
}

/// Where an axis or the rates of a grid lie; grids of one section share their axes, which the first of them holds until all are read.
std::function<MachineField(MachineProfile&)> axis(RateGrid ComputeRates::*grid, DType dtype, std::size_t number) {
  return [=](MachineProfile& p) {
    auto& axes = (p.rates(dtype).*grid).axes;
    if (axes.size() <= number) axes.resize(number + 1);
    return MachineField{&axes[number]};
  };
}
std::function<MachineField(MachineProfile&)> rates(RateGrid ComputeRates::*grid, DType dtype) {
  return [=](MachineProfile& p) { return MachineField{&(p.rates(dtype).*grid).rates}; };
}

/// `type`: as profiles write it.
void add_products(std::vector<MachineKey>& keys, DType dtype, const std::string& type) {
  const auto in = [&](const char* leaf) { return fmt::format("gemm.{}.{}", type, leaf); };
  const std::vector<std::string> sizes{"tokens", "outputs", "inputs"};
  using R = ComputeRates;
  keys.push_back({in("peak"), flops, Needed::with_section, "the most that the hardware can do; MFU is a share of it",
                  [=](MachineProfile& p) { return MachineField{&p.rates(dtype).peak}; }});
  for (std::size_t a = 0; a < sizes.size(); ++a)
    keys.push_back({in(sizes[a].c_str()), MachineValue::sizes, Needed::with_section,
                    "sizes of linear layers at which the rates are known, in rising order", axis(&R::forward, dtype, a)});
  const std::pair<const char*, RateGrid R::*> products[] = {
      {"forward", &R::forward}, {"input_gradient", &R::input_gradient}, {"weight_gradient", &R::weight_gradient}};
  for (const auto& [leaf, grid] : products)
    keys.push_back({in(leaf), flops_list, Needed::with_section,
                    "rates of that product, for each of tokens x outputs x inputs, inputs running fastest; or one for all",
                    rates(grid, dtype), sizes});
}

void add_compute(std::vector<MachineKey>& keys, DType dtype) {
  const auto in = [&](const char* room, const char* leaf) { return fmt::format("{}.{}.{}", room, name_of(dtype), leaf); };
  const std::vector<std::string> lengths{"tokens", "head_dim"};
  using R = ComputeRates;
  add_products(keys, dtype, std::string(name_of(dtype)));
  for (std::size_t a = 0; a < lengths.size(); ++a)
    keys.push_back({in("attention", lengths[a].c_str()), MachineValue::sizes, Needed::with_section,
                    "lengths of a sequence, or features of a head, at which the rates are known, in rising order",
                    axis(&R::attention_forward, dtype, a)});
  const std::pair<const char*, RateGrid R::*> passes[] = {{"forward", &R::attention_forward}, {"backward", &R::attention_backward}};
  for (const auto& [leaf, grid] : passes)
    keys.push_back({in("attention", leaf), flops_list, Needed::with_section,
                    "rates of causal attention, for each of tokens x head_dim, head_dim running fastest; or one for all",
                    rates(grid, dtype), lengths});
  keys.push_back({in("kernels", "bytes"), amounts, Needed::with_section,
                  "bytes that a call reads and writes at which the rates are known, in rising order", [=](MachineProfile& p) {
                    auto& axes = p.rates(dtype).kernels["stream"].axes;
                    axes.resize(1);
                    return MachineField{&axes.front()};
                  }});
  for (const char* kernel : memory_kernels)
    keys.push_back({in("kernels", kernel),
                    traffic_list,
                    std::string_view(kernel) == "stream" ? Needed::with_section : Needed::never,
                    "bytes that its calls read and write a second, for each of bytes, or one for all; kernels that are not listed have the "
                    "rate of stream",
                    [=](MachineProfile& p) { return MachineField{&p.rates(dtype).kernels[kernel].rates}; },
                    {"bytes"}});
}

/// What a step loses beside the work of its kernels.
void add_losses(std::vector<MachineKey>& keys) {
  using P = MachineProfile;
  const char* of_programs = "share of this profile's rates of kernels that programs reach in a step: ";
  const std::vector<MachineKey> losses{
      {"power.limit", watts, Needed::with_section, "power that a GPU may take", at([](P& p) { return &p.power.limit; })},
      {"power.rated", watts, Needed::with_section, "power at which the rates of this profile were measured",
       at([](P& p) { return &p.power.rated; })},
      {"power.exponent", share, Needed::with_section, "products and attention take (rated / limit)^exponent as long",
       at([](P& p) { return &p.power.exponent; })},
      {"contention.compute", share, Needed::with_section, "share of its rate that compute loses while a collective runs",
       at([](P& p) { return &p.contention; })},
      {"contention.multiprocessors", count, Needed::never, "multiprocessors of the GPU, of which products leave some to collectives",
       at([](P& p) { return &p.sharing.multiprocessors; })},
      {"contention.second_wave", share, Needed::never,
       "share of its rate that a product loses beside a collective that it leaves no multiprocessors: its last blocks wait for the first",
       at([](P& p) { return &p.sharing.second_wave; })},
      {"contention.block", traffic, Needed::never, "bytes a second that a block of a gather or reduction moves",
       at([](P& p) { return &p.sharing.block; })},
      {"jitter.ranks", share, Needed::with_section,
       "standard deviation of compute's time over ranks, as a share of it: a step waits for the slowest of them",
       at([](P& p) { return &p.jitter; })},
      {"efficiency.low", share, Needed::with_section, fmt::format("{}the slowest", of_programs),
       at([](P& p) { return &p.efficiency.low; })},
      {"efficiency.likely", share, Needed::with_section, fmt::format("{}the share that predictions use", of_programs),
       at([](P& p) { return &p.efficiency.likely; })},
      {"efficiency.high", share, Needed::with_section, fmt::format("{}the fastest", of_programs),
       at([](P& p) { return &p.efficiency.high; })}};
  keys.insert(keys.end(), losses.begin(), losses.end());
}

std::vector<MachineKey> make_keys() {
  using P = MachineProfile;
  std::vector<MachineKey> keys{
      {"machine.name", text, Needed::always, "description of the machine, for people", at([](P& p) { return &p.name; })},
      {"machine.device", text, Needed::always, "device that ranks compute with: \"cuda\" or \"host\"", at([](P& p) { return &p.device; })},
      {"machine.ranks_per_node", count, Needed::always, "ranks of a node, one a GPU", at([](P& p) { return &p.ranks_per_node; })},
      {"machine.threads", count, Needed::never, "threads that a rank of the host was measured with", at([](P& p) { return &p.threads; })},
      {"machine.device_memory", bytes, Needed::never, "memory of a rank's GPU", at([](P& p) { return &p.device_memory; })},
      {"machine.host_memory", bytes, Needed::never, "memory of a node, for all its ranks", at([](P& p) { return &p.host_memory; })},
      {"machine.assumed", MachineValue::keys, Needed::never,
       "figures that nobody measured, as patterns of keys: predictions count how many of them they use",
       at([](P& p) { return &p.assumed; })},
      {"machine.price", number, Needed::never, "price of a rank for an hour, in any currency", at([](P& p) { return &p.price; })},
      {"overhead.task", seconds, Needed::always, "overhead of each task", at([](P& p) { return &p.task_overhead; })},
      {"overhead.call", seconds, Needed::always, "least time of a kernel call", at([](P& p) { return &p.least_call; })},
      {"overhead.launch", seconds, Needed::never, "time that a GPU waits for its host at the start of each section of a step",
       at([](P& p) { return &p.launch; })}};
  add_losses(keys);
  add_compute(keys, DType::bf16);
  add_compute(keys, DType::f32);
  add_compute(keys, DType::f16);
  add_products(keys, DType::e4m3, "fp8");
  const char *step = "latency of a step of a ring or tree of ranks", *in = "bytes a second that each rank takes in";
  const std::vector<MachineKey> links{
      {"collectives.node.latency", seconds, Needed::with_section, step, at([](P& p) { return &p.node.latency; })},
      {"collectives.node.all_gather", traffic, Needed::with_section, in, at([](P& p) { return &p.node.all_gather; })},
      {"collectives.node.reduce_scatter", traffic, Needed::with_section, in, at([](P& p) { return &p.node.reduce_scatter; })},
      {"collectives.node.all_reduce", traffic, Needed::with_section, in, at([](P& p) { return &p.node.all_reduce; })},
      {"collectives.network.latency", seconds, Needed::with_section, step, at([](P& p) { return &p.network.latency; })},
      {"collectives.network.bandwidth", traffic, Needed::with_section, "bytes a second into a node, by all its adapters",
       at([](P& p) { return &p.network.bandwidth; })},
      {"transfer.latency", seconds, Needed::with_section, "latency of a copy between a rank's device and its host",
       at([](P& p) { return &p.transfer.latency; })},
      {"transfer.up", traffic, Needed::with_section, "from a rank's host memory to its device", at([](P& p) { return &p.transfer.up; })},
      {"transfer.down", traffic, Needed::with_section, "from a rank's device to its host memory",
       at([](P& p) { return &p.transfer.down; })},
      {"disk.latency", seconds, Needed::with_section, "latency of a transfer", at([](P& p) { return &p.disk.latency; })},
      {"disk.read", traffic, Needed::with_section, "read rate of a node's disks together", at([](P& p) { return &p.disk.read; })},
      {"disk.write", traffic, Needed::with_section, "write rate of a node's disks together", at([](P& p) { return &p.disk.write; })},
      {"host.adamw", traffic, Needed::with_section, "bytes a second that AdamW on all cores of a node reads and writes",
       at([](P& p) { return &p.host.adamw; })},
      {"host.stream", traffic, Needed::with_section, "bytes a second that other passes of a node's cores read and write",
       at([](P& p) { return &p.host.stream; })}};
  keys.insert(keys.end(), links.begin(), links.end());
  return keys;
}

}  // namespace

const std::vector<MachineKey>& machine_keys() {
  static const std::vector<MachineKey> keys = make_keys();
  return keys;
}

std::span<const MachineUnit> units_of(MachineValue value) {
  switch (value) {
    case bytes:
    case amounts:
      return byte_units;
    case seconds:
      return time_units;
    case flops:
    case flops_list:
      return flops_units;
    case traffic:
    case traffic_list:
      return traffic_units;
    case watts:
      return watt_units;
    default:
      return {};
  }
}

}  // namespace tessera
