// One rank's model in memory: schedule, arenas, executor. Knows steps; knows nothing of files, logs or the order of data.
#pragma once
#include <memory>
#include <optional>
#include <span>

#include "io/checkpoint/checkpoint.hpp"
#include "kernels/step/step.hpp"
#include "schedule/build/builder.hpp"
#include "schedule/build/micro_batches.hpp"
#include "schedule/plan/memory_plan.hpp"
#include "schedule/run/make_executor.hpp"
#include "topology/communicators/communicator.hpp"

namespace tessera {

using kernels::StepReport;

class Node;

/// The ranks that share the data. Alone: no communicators.
struct DataParallelGroup {
  int rank = 0, ranks = 1;
  std::unique_ptr<Communicator> gather, reduce;  ///< one a lane
  Node* node = nullptr;                          ///< where shared arenas are registered
};

/// Memory that its owner takes beside an engine's plan, which must fit too, and what its user can do where it does not.
struct Beside {
  TierBytes bytes{};
  std::string advice = {};  ///< empty: what training can do
  int ranks_on_gpu = 1;     ///< that take as much of it and have not done so yet
};

struct EngineOptions {
  bool training = true;                       ///< false: weights and forward passes only
  std::int64_t evaluation_micro_batches = 0;  ///< per rank
  LaneMode lanes = LaneMode::inline_order;
  /// File of a KernelSearch: which algorithms run products, whose attention; empty: no search.
  std::string kernel_choices = {};
  Beside beside = {};
};

class Engine {
 public:
  /// Plans, then allocates. Throws Error(memory) before any allocation when memory.host_limit or the node is too small.
  Engine(const Deck& deck, DataParallelGroup group, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;

  const Schedule& schedule() const { return schedule_; }
  const MemoryPlan& plan() const { return plan_; }
  const Layout& layout() const { return request_.layout; }
  const BuildRequest& request() const { return request_; }
  int rank() const { return request_.rank; }
  int ranks() const { return request_.ranks; }
  std::int64_t accumulation() const { return accumulation_steps(request_.deck, request_.ranks); }
  /// Bytes that tasks touch, by tier, as the executor addresses them; equal to plan().bytes, which is asserted when training.
  std::array<std::int64_t, tier_count> used_bytes() const;

  /// Weights from the deck's seed: each element depends on (seed, tensor name, element) alone.
  void initialise_weights();
  /// This rank's part of a checkpoint: weights, and moments when training; publish() follows. Throws Error(checkpoint) that names the first
  /// tensor that differs in name or shape.
  void read_state(const io::CheckpointReader& reader);
  /// Makes the compute copies from the master weights; collective over the group.
  void publish();
  /// For tests and import: `value(parameter row, first element, out)` gives a tensor's values; moments become zero.
  void set_weights(const std::function<void(const Parameter&, std::int64_t, std::span<float>)>& value);

  io::CheckpointLayout checkpoint_layout() const;
  /// This rank's slices, borrowed from the arenas: valid until the next step. On a GPU they are brought to the host first.
  std::vector<io::ShardSlice> checkpoint_slices() const;

  /// Inputs of micro-batch m of this rank for the next run, (B*T) each.
  std::span<std::int32_t> tokens(std::int64_t micro);
  std::span<std::int32_t> targets(std::int64_t micro);
  /// Weight of micro-batch m in the loss: 1, or 0 for one that only keeps ranks in step.
  double& weight(std::int64_t micro);

  /// One optimizer step, 0-based; collective over the group. `stop` asks all ranks to stop: the report says whether any rank asked.
  /// Where there is a `timeline`, it becomes that of the step's tasks.
  StepReport step(std::int64_t step, bool stop = false, Timeline* timeline = nullptr);
  /// Mean loss per token over the evaluation micro-batches; `tokens` is the number of tokens with weight 1 over all ranks.
  StepReport evaluate(double tokens);
  const LaneTimes& times() const { return executor_->times(); }
  /// What the lanes are at; any thread may ask.
  std::string under_way() const { return executor_->under_way(); }

  /// Tests: this rank's copy of a tensor's summed gradient in fp32 after a step (whole gradients only: stage 0 or 1, or one rank), and its
  /// compute copy.
  std::vector<float> gradient_of(const std::string& tensor) const;
  std::vector<float> weight_of(const std::string& tensor) const;
  /// Where a tensor's compute copy begins (whole parameters only).
  const void* weight_address(const std::string& tensor) const;

 private:
  std::byte* address(int buffer, std::int64_t offset = 0) const;
  /// The buffer that the host writes or reads in place of a buffer in a GPU's memory; the buffer itself where the host reaches it.
  int host_side(const std::string& buffer) const;
  std::vector<std::byte> bytes_at(const void* from, std::int64_t bytes) const;
  void bytes_to(void* to, const void* from, std::int64_t bytes) const;
  template <class T>
  T& value(const char* buffer) const {
    return *reinterpret_cast<T*>(address(host_side(buffer)));
  }
  /// On a GPU: searches for the fastest kernels and loads all of them, on weights of noise, which it leaves zeroed.
  void warm_up(const std::string& kernel_choices);
  /// Zeroes the memory of a GPU and what is pinned for it.
  void clear_device();
  void fill_parameters_with_noise();
  float* state_address(const std::string& group, int unit, StateSide side = StateSide::host) const;
  void for_each_state(const std::function<void(int unit, const Range&)>& f) const;
  void load_training_state(const io::CheckpointReader& reader);
  void load_weights(const io::CheckpointReader& reader);

  BuildRequest request_;
  DataParallelGroup group_;
  Schedule schedule_;
  MemoryPlan plan_;
  std::array<Arena, tier_count> arenas_;
  std::array<std::optional<RegisteredMemory>, 2> registered_;  ///< the device's arena, with the communicators of both lanes
  std::unique_ptr<Executor> executor_;
  int tokens_ = 0, targets_ = 0, weights_ = 0;
};

/// Bytes that a rank's plan, and what is taken beside it, may take of the host, from memory.host_limit or the node's memory divided by its
/// ranks, and of the GPU; throws Error(memory) with what to change.
void require_fits(const Deck& deck, const MemoryPlan& plan, int ranks_on_node, const Beside& beside = {});

}  // namespace tessera
