// How far the kernels of a step are from what the machine could do: of each the time that its work takes at least, by the rate of a product
// or of a copy, beside the time that it took.
#pragma once
#include "base/json.hpp"
#include "schedule/run/operations.hpp"
#include "schedule/run/timeline.hpp"

namespace tessera {

/// What bounds kernels, of a rank's threads.
struct FloorRates {
  double flops = 0;  ///< a second, of a square product in the compute type
  double bytes = 0;  ///< a second, read and written, of a copy that no cache holds
};

/// Calls of one name, over layers, micro-batches and steps; or tasks that are one kernel.
struct KernelRow {
  std::string name;  ///< "linear gate_up", "attention_backward", "adamw"
  std::int64_t calls = 0;
  double seconds = 0;
  double flops = 0;  ///< of products and attention
  double bytes = 0;  ///< of passes over memory
  double floor(const FloorRates& rates) const { return flops > 0 ? flops / rates.flops : bytes / rates.bytes; }
};

class KernelProfile {
 public:
  /// A step: `calls` are those of its passes, `timeline` has its other tasks, of which compute's that pass over memory are kernels. It took
  /// `seconds`.
  void add(const Schedule& schedule, const CallSeconds& calls, const Timeline& timeline, double seconds);
  std::int64_t steps() const { return steps_; }
  /// The rows that have most to gain first.
  std::vector<KernelRow> rows(const FloorRates& rates) const;
  /// Lines for people, each after a line break: means of a step. Rows below a two-hundredth of it stand together.
  std::string print(const FloorRates& rates) const;
  /// All rows, of the mean step.
  Json json(const FloorRates& rates) const;

 private:
  KernelRow& row(std::string_view name);
  std::vector<KernelRow> rows_;
  double seconds_ = 0;
  std::int64_t steps_ = 0;
};

}  // namespace tessera
