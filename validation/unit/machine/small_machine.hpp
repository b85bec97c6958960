// A machine of round numbers.
#pragma once
#include "machine/profile.hpp"

namespace tessera::test {

inline MachineProfile small_machine() {
  MachineProfile m;
  m.name = "small", m.device = "host", m.ranks_per_node = 4;
  m.task_overhead = 1e-6, m.least_call = 1e-7, m.launch = 1e-5;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    ComputeRates& r = m.rates(dtype);
    r.peak = 1e11;
    const std::vector<std::vector<double>> sizes{{8, 1024}, {8, 1024}, {8, 1024}};
    r.forward = {.axes = sizes, .rates = {1e9, 2e9, 2e9, 4e9, 2e9, 4e9, 4e9, 9e10}};
    r.input_gradient = {.axes = sizes, .rates = {2e9}};
    r.weight_gradient = {.axes = sizes, .rates = {1e9, 2e9, 2e9, 4e9, 2e9, 4e9, 4e9, 9e10}};
    r.attention_forward = {.axes = {{8, 1024}, {8, 64}}, .rates = {1e9, 2e9, 2e9, 4e9}};
    r.attention_backward = {.axes = {{8, 1024}, {8, 64}}, .rates = {1e9}};
    r.kernels["stream"] = {.axes = {{1e3, 1e6}}, .rates = {4e9, 1e9}};
    r.kernels["swiglu"] = {.axes = {{1e3, 1e6}}, .rates = {2e9, 1e9}};
  }
  m.node = {.latency = 1e-6, .all_gather = 1e9, .reduce_scatter = 2e9, .all_reduce = 4e9};
  m.network = {.latency = 10e-6, .bandwidth = 0.5e9};
  m.transfer = {.latency = 1e-6, .up = 1e9, .down = 1e9};
  m.disk = {.latency = 1e-4, .read = 1e8, .write = 1e8};
  m.host = {.adamw = 2e9, .stream = 3e9};
  return m;
}

/// Makes one thing of many faster: rates rise, latencies fall.
inline constexpr std::size_t rates_of_small_machine = 22;
inline void quicken(MachineProfile& m, std::size_t number) {
  double* rates[] = {&m.node.all_gather, &m.node.reduce_scatter, &m.node.all_reduce, &m.network.bandwidth, &m.transfer.up,
                     &m.transfer.down,   &m.disk.read,           &m.disk.write,      &m.host.adamw,        &m.host.stream};
  double* latencies[] = {&m.task_overhead, &m.least_call, &m.node.latency, &m.network.latency, &m.transfer.latency, &m.disk.latency};
  RateGrid ComputeRates::*grids[] = {&ComputeRates::forward, &ComputeRates::input_gradient, &ComputeRates::weight_gradient,
                                     &ComputeRates::attention_forward, &ComputeRates::attention_backward};
  if (number < 10) {
    *rates[number] *= 1.5;
  } else if (number < 16) {
    *latencies[number - 10] *= 0.5;
  } else {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      ComputeRates& r = m.rates(dtype);
      RateGrid& grid = number < 21 ? r.*grids[number - 16] : r.kernels.find("stream")->second;
      for (double& rate : grid.rates) rate *= 1.05;
    }
  }
}

}  // namespace tessera::test
