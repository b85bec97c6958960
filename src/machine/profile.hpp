// A machine in numbers: what the simulator reckons with. It is a TOML file with units: one of inputs/machines, whose figures are published,
// or what `tessera report --measure` has found.
#pragma once
#include <map>
#include <string>

#include "base/types.hpp"
#include "deck/deck.hpp"
#include "machine/rate_grid.hpp"

namespace tessera {

/// What a rank computes with, in one compute type.
struct ComputeRates {
  double peak = 0;                                       ///< FLOP/s, the yardstick of MFU; no rate below exceeds it
  RateGrid forward, input_gradient, weight_gradient;     ///< FLOP/s of a linear layer's products, over tokens, outputs, inputs
  RateGrid attention_forward, attention_backward;        ///< FLOP/s (causal), over tokens of a sequence, head dim
  std::map<std::string, RateGrid, std::less<>> kernels;  ///< bytes/s over bytes, by the first word of a call; "stream": all others
  bool given() const { return peak > 0; }
};

/// Calls of kernels that memory bounds and a profile may know by name; the last is what stands for those that it does not.
inline constexpr const char* memory_kernels[] = {"rmsnorm",
                                                 "rmsnorm_backward",
                                                 "swiglu",
                                                 "swiglu_backward",
                                                 "rope",
                                                 "rope_backward",
                                                 "qk_norm_rope",
                                                 "qk_norm_rope_backward",
                                                 "softmax_loss",
                                                 "embedding",
                                                 "embedding_backward",
                                                 "column_sums",
                                                 "sum_of_squares",
                                                 "accumulate",
                                                 "adamw",
                                                 "stream"};

struct MachineProfile {
  std::string name, device;  ///< device: "cuda" or "host", what ranks compute with
  std::int64_t ranks_per_node = 1;
  std::int64_t threads = 0;        ///< of a rank whose kernels were measured on the host; 0: not said
  std::int64_t device_memory = 0;  ///< bytes of a rank's GPU; 0 where ranks compute on the host
  std::int64_t host_memory = 0;    ///< bytes of a node; 0: not said

  std::vector<std::string> assumed;  ///< patterns of keys whose figures nobody has measured or published

  double task_overhead = 0;  ///< seconds that each task takes beside its work
  double least_call = 0;     ///< seconds: no call of a kernel takes less
  double launch = 0;         ///< seconds that a GPU waits for its host at the begin of each section
  double price = 0;          ///< of a rank for an hour, in any currency; 0: not said
  ComputeRates fp32, bf16, fp16;
  ComputeRates fp8;  ///< its products alone: attention and other kernels of such a step stay in the compute type

  /// Watts that a GPU may take, and those at which its rates were said. Products and attention take (rated / limit)^exponent as long.
  struct {
    double limit = 0, rated = 0, exponent = 0;
    double slowdown() const;
  } power;
  double contention = 0;  ///< share of compute's rate that a collective beside it takes
  /// How kernels of products and of collectives share a GPU. 0: as any other kernels.
  struct {
    std::int64_t multiprocessors = 0;  ///< of the GPU
    double second_wave = 0;            ///< share of its rate that a product loses beside a collective that it leaves no multiprocessors
    double block = 0;                  ///< bytes/s that a block of a gather or reduction moves
  } sharing;
  double jitter = 0;  ///< standard deviation of the compute time of ranks, as a share of it
  /// Shares of the rates above that programs reach in a step. 0: the rates are what a program reaches.
  struct {
    double low = 0, likely = 0, high = 0;
    bool given() const { return likely > 0; }
  } efficiency;
  double share_reached() const { return efficiency.given() ? efficiency.likely : 1; }

  /// Between ranks of a node: latency of a step of a ring or tree, and bytes/s that a rank takes in.
  struct {
    double latency = 0, all_gather = 0, reduce_scatter = 0, all_reduce = 0;
  } node;
  /// Between nodes: the same latency, and bytes/s into a node by all its adapters. 0: this machine is one node.
  struct {
    double latency = 0, bandwidth = 0;
  } network;
  /// Between the memory of a rank's kernels and that of its host; both directions at once. 0: not said.
  struct {
    double latency = 0, up = 0, down = 0;
  } transfer;
  /// Of a node, shared by its ranks. 0: not said.
  struct {
    double latency = 0, read = 0, write = 0;
  } disk;
  /// Of a node's cores, shared by its ranks: bytes/s of AdamW's traffic and of other passes over memory. 0: not said.
  struct {
    double adamw = 0, stream = 0;
  } host;

  /// Where a profile does not say those of fp16, GPUs multiply it at the rates of bf16, and the host widens it to fp32.
  const ComputeRates& rates(DType dtype) const {
    if (dtype == DType::f16 && !fp16.given()) return device == "cuda" ? bf16 : fp32;
    return this->*rates_of(dtype);
  }
  ComputeRates& rates(DType dtype) { return this->*rates_of(dtype); }

 private:
  static ComputeRates MachineProfile::*rates_of(DType dtype);
};

struct ParsedMachine {
  MachineProfile profile;
  std::vector<Fault> faults;  ///< empty: the profile may be used
};
/// Reads a profile. Unknown keys, missing ones, wrong types and units, numbers that contradict each other: all faults are collected.
ParsedMachine parse_machine(const std::string& path);
ParsedMachine parse_machine_text(const std::string& text, const std::string& name);
/// The same, or Error(usage) that lists every fault, one a line.
MachineProfile require_machine(const std::string& path);

/// As a file; reading it gives the profile again, to five digits.
std::string print_machine(const MachineProfile& profile);

}  // namespace tessera
