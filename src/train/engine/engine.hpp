// One rank's model: its plan, memory, state and executor. It runs steps. It knows nothing of files (callers pass what
// was saved), writes no log and does not choose the order of data.
#pragma once
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "kernels/preference/preference.hpp"
#include "kernels/step/step.hpp"
#include "optimizer/state.hpp"
#include "schedule/build/micro_batches.hpp"
#include "schedule/inputs.hpp"
#include "schedule/run/make_executor.hpp"
#include "schedule/run/witness.hpp"
#include "train/engine/copies.hpp"
#include "train/engine/evaluation_record.hpp"
#include "train/engine/router_figures.hpp"
#include "train/engine/state.hpp"

namespace tessera {

using kernels::StepReport;

struct EngineOptions {
  LaneMode lanes = LaneMode::inline_order;
  /// File of a KernelSearch with the chosen product algorithms and attention code; empty: no search.
  std::string kernel_choices = {};
  /// Time each call of a host kernel.
  bool times_calls = false;
  /// For tests, on the host and one lane: fill a buffer's memory with NaN when its life begins.
  bool poison = false;
};

/// Connections to other ranks; empty for a single rank.
struct RankLinks {
  Communicators communicators = {};
  Node* node = nullptr;  ///< registers shared arenas; must outlive the engine
};

/// Counts of this rank's part of a batch. If ranks share data, one of them counts it. A step's report has the sums over ranks.
struct BatchCounts {
  std::int64_t document_squares = 0;  ///< sum of squared document lengths, if documents are masked
  std::int64_t padding = 0;           ///< padding tokens
};

struct StepOptions {
  bool stop = false;             ///< asks all ranks to stop; the report says whether any rank asked
  bool rehearsal = false;        ///< computes the step without an update, so that it can be repeated
  Timeline* timeline = nullptr;  ///< filled with the times of the step's tasks
  BatchCounts counts = {};
};

/// One pass of an evaluation: evaluation_micro_batches of each rank.
struct EvaluationPass {
  std::int64_t tokens = 0;   ///< tokens in micro-batches of weight 1, over all ranks
  std::int64_t padding = 0;  ///< padding among them, counted as in BatchCounts
  bool goes_on = false;      ///< add to the sums of the pass before
  bool stop = false;         ///< as in StepOptions
};

/// Loss of a token group.
struct GroupLoss {
  double sum = 0, weight = 0;
  std::int64_t targets = 0;  ///< number of summed targets
};

class Engine {
 public:
  /// Allocates the planned memory. See fit.hpp for the check that it fits.
  explicit Engine(RunPlan plan, const EngineOptions& options = {}, RankLinks links = {});
  /// For a run in phases with a plan each (deck/ramp.hpp). Allocates the largest need of each tier and starts in the first phase.
  explicit Engine(std::vector<RunPlan> phases, const EngineOptions& options = {}, RankLinks links = {});
  Engine(const Engine&) = delete;

  std::size_t phase() const { return phase_; }
  /// Continues in another phase with the same state and run values. Not while a copy is pending, nor while other ranks read this rank's
  /// memory. Collective over the group.
  void enter(std::size_t phase);
  /// The same before the state is initialised or read.
  void begin_in(std::size_t phase);

  /// The plan of the current phase.
  const RunPlan& planned() const { return plan_; }
  const Schedule& schedule() const { return plan_.schedule; }
  const MemoryPlan& plan() const { return plan_.memory; }
  const Layout& layout() const { return plan_.layout(); }
  const Group& data() const { return plan_.request.data; }
  std::int64_t accumulation() const { return accumulation_steps(plan_.request.deck, data().size); }
  /// The largest need of any phase, by tier.
  const TierBytes& room() const { return room_; }
  /// Bytes that the executor's addresses reach, by tier, in the phase with the most. For a training run they equal room(), which is
  /// asserted.
  const TierBytes& used_bytes() const { return used_; }

  /// Initialises ModelState and makes the compute copies; collective over the group.
  void initialise_weights();
  void set_weights(const std::function<void(const Parameter&, std::int64_t, std::span<float>)>& value);
  /// Reads this rank's part of a checkpoint; call publish() next. Not collective, so ranks can agree on one rank's error.
  void read_state(const io::SavedState& from) {
    state_.load(from);
    evaluations_ = EvaluationRecord::of(from.meta().values);
  }
  /// The same for weights from another source, at the start of a run.
  void read_weights(const WeightSource& source) const { state_.read(source); }
  /// Makes compute copies from master weights; collective over the group.
  void publish() { executor_->run(ProgramKind::publish), pending_ = false; }
  /// With late updates: runs the pending update. Collective over the group; evaluate() calls it.
  void settle();
  /// With asynchronous saves: makes the next step copy the state before it changes it. Call settle() first.
  void copy_with_next_step();
  /// Cancels the copy if no step has run since. Returns true if it is cancelled, to every caller that asked for it.
  bool cancel_copy() {
    if (copy_ == StateCopy::awaited) copy_ = StateCopy::cancelled;
    return copy_ == StateCopy::cancelled;
  }
  /// With checkpoint.neighbour_every: whether the running step has finished its copies. Called by another thread.
  bool copies_are_made() const;
  /// The copies of the last copying step; valid until the next one.
  std::vector<io::ShardSlice> copied_slices() const { return state_.copied_slices(); }
  io::CheckpointLayout checkpoint_layout() const { return state_.checkpoint_layout(); }
  bool constants_on_host() const { return state_.constants_on_host(); }
  /// Seconds that the last step spent on copies of the state alone; 0 where it made none.
  double waited_for_copies() const { return waited_for_copies_; }
  /// The run's values after the last step, and in the form of a checkpoint.
  const kernels::RunValues& run_values() const { return value<kernels::RunValues>("run"); }
  std::vector<io::CheckpointValue> saved_run_values() const;
  /// What the run remembers of its evaluations. No task reads it, and saves hold it.
  EvaluationRecord& evaluations() { return evaluations_; }
  const EvaluationRecord& evaluations() const { return evaluations_; }
  /// Whether this rank restarts the state that a checkpoint holds for each rank alone (ModelState). A pending update may exist; reading
  /// replaces it.
  bool leaves_own(const io::SavedState& from) const { return state_.leaves_own(from); }
  /// The state that a save writes. Call settle() first.
  const ModelState& state() const;

  /// This rank's positions of each sequence, in the order of its rows.
  std::vector<Range> positions() const;
  /// An input of this rank's micro-batch for the next run, by its name in input_rows; empty if no task reads it.
  template <class T>
  std::span<T> input(std::string_view name, std::int64_t micro) const {
    const InputRow& row = *input_of(name);
    TESSERA_REQUIRE(row.bytes == sizeof(T), "{} are numbers of {} bytes", name, row.bytes);
    const int buffer = inputs_[static_cast<std::size_t>(&row - input_rows)];
    if (buffer < 0) return {};
    const std::int64_t n = row.numbers(schedule().shape);
    return {reinterpret_cast<T*>(memory_.address(buffer)) + micro * n, static_cast<std::size_t>(n)};
  }
  /// This rank's positions of B sequences.
  std::span<std::int32_t> tokens(std::int64_t micro) const { return input<std::int32_t>("tokens", micro); }
  std::span<std::int32_t> targets(std::int64_t micro) const { return input<std::int32_t>("targets", micro); }
  /// The weight of each token's loss; 1 until written.
  std::span<float> row_weights(std::int64_t micro) const { return input<float>("row_weights", micro); }
  /// The token group of each token, or -1.
  std::span<std::int32_t> token_groups(std::int64_t micro) const { return input<std::int32_t>("token_groups", micro); }
  /// The document start of each of the B T tokens, for whole sequences even if this rank has a part of them.
  std::span<std::int32_t> document_starts(std::int64_t micro) const { return input<std::int32_t>("document_starts", micro); }
  /// 1 for padding tokens, which routers ignore.
  std::span<std::int32_t> padding(std::int64_t micro) const { return input<std::int32_t>("padding", micro); }
  /// Until they are written, -1: nothing is dropped.
  std::span<std::int64_t> token_numbers(std::int64_t micro) const { return input<std::int64_t>("token_numbers", micro); }
  /// Sets the weight of a micro-batch's router losses; 0 for an empty micro-batch.
  void set_weight(std::int64_t micro, double weight) const {
    for (double& of : input<double>("weights", micro)) of = weight;
  }

  /// With Rotation::by_longest: makes the rope tables for documents of at most `longest` tokens.
  void turn_by(std::int64_t longest);
  /// Runs the next optimizer step; collective over the group.
  StepReport step(const StepOptions& options = {});
  /// The exact bits of this rank's loss and squared norm in the last step, before the sum over ranks.
  struct OwnSums {
    kernels::FixedSum loss, squares;
    bool not_finite = false;  ///< this rank saw a value that is not finite
  };
  OwnSums own_sums() const;
  /// Repeats the last step on the same batch without an update. Returns the first value that is not finite and the task that wrote it.
  /// Collective over the group.
  std::optional<Finding> find_not_finite();
  /// The first value of this rank's state that is not finite: "adam_v of ..., element 17 ... is nan"; "" if there is none.
  std::string state_not_finite() const;
  /// Digest of all ranks' weights and optimizer state, independent of the layout: 32 hexadecimal digits. Collective.
  std::string digest_of_state(const World& world);
  /// Digests of data that other ranks hold too, except on disks. Collective if an update is pending.
  std::vector<CopyDigest> digest_copies();
  /// Skips that many samples: no step uses them. Collective over the group.
  void leave_out(std::int64_t samples);
  /// The learning rate of the last step.
  double learning_rate() const { return learning_rate_; }
  /// Mean loss over the targets of micro-batches of weight 1, in this pass and the passes that it continues.
  StepReport evaluate(const EvaluationPass& pass);
  /// Loss of a tower beside the model in the last step, over all ranks; none without it.
  std::optional<double> loss_of(std::string_view tower) const;
  /// With losses of pairs: sums of the last step or evaluation for its metrics, over all ranks.
  std::optional<kernels::PreferenceTotals> preference_totals() const;
  /// Losses of each token group in the last step or evaluation, over all ranks; empty without groups.
  std::vector<GroupLoss> group_losses() const;
  /// Router statistics of the last step or evaluation, over all ranks; none without experts.
  std::optional<RouterFigures> router_figures() const;
  /// Runs the program of a prompt or of a token.
  void run(ProgramKind kind) { executor_->run(kind); }
  /// The host side of a named buffer, to write before a program or read after it; empty if there is no such buffer.
  template <class T>
  std::span<T> host_values(const std::string& buffer) const {
    const int id = memory_.host_side(buffer);
    if (id < 0) return {};
    const auto bytes = static_cast<std::size_t>(schedule().buffers[static_cast<std::size_t>(id)].bytes);
    return {reinterpret_cast<T*>(memory_.address(id)), bytes / sizeof(T)};
  }
  /// With EngineOptions::times_calls: seconds of each pass since the last call.
  CallSeconds take_call_seconds();
  const LaneTimes& times() const { return executor_->times(); }
  /// Adds the running task of each lane. Any thread may call this.
  void add_under_way(RankWork& work) const;
  /// Describes the disk tier; empty without one.
  std::string how_disks_work() const { return memory_.disk() ? memory_.disk()->how() : ""; }

  /// For tests: a tensor's summed gradient in fp32 after a step (only if whole: stage 0 or 1, or one rank), and its compute copy.
  std::vector<float> gradient_of(const std::string& tensor) const;
  std::vector<float> weight_of(const std::string& tensor) const;
  /// Address of a tensor's compute copy (whole parameters only).
  const void* weight_address(const std::string& tensor) const;

 private:
  template <class T>
  T& value(const char* buffer) const {
    return *reinterpret_cast<T*>(memory_.address(memory_.host_side(buffer)));
  }
  /// Counts this rank's targets; no targets if another rank counts the same ones.
  void count_targets(std::int64_t micro_batches, kernels::StepInputs& inputs) const;
  /// Makes the plan's executor, and writes the inputs that no step changes.
  void make_ready();
  void fill_inputs() const;
  void fill_rope_tables() const;
  void fill_rope_table(int rotation) const;
  /// Token positions for learned positions.
  void fill_positions() const;
  kernels::StepInputs inputs_of_step(const StepOptions& options);
  void run_step(ProgramKind kind, Timeline* timeline);
  /// On a GPU: searches for the plan's fastest kernels and loads them, with random weights that it zeroes afterwards.
  void warm_up(const std::string& kernel_choices);
  /// Zeroes GPU and pinned memory.
  void clear_device();
  void fill_parameters_with_noise();
  /// Waits for all submitted GPU work.
  void wait_for_device() const;

  std::vector<RunPlan> phases_;  ///< the entry of the current phase is empty
  std::size_t phase_ = 0;
  TierBytes room_{}, used_{};
  RunPlan plan_;
  EngineOptions options_;
  RankLinks links_;
  RankMemory memory_;
  ModelState state_;
  std::vector<ChosenOptimizer> optimizers_;
  mutable std::mutex changes_;  ///< guards executor_
  std::unique_ptr<Witness> witness_;
  CallSeconds call_seconds_;
  std::unique_ptr<Executor> executor_;
  std::array<int, std::size(input_rows)> inputs_{};  ///< buffers that the host fills, by row of input_rows
  bool counts_targets_;                              ///< among tp ranks with the same targets, the first counts them
  bool pending_ = false;                             ///< an update is pending
  EvaluationRecord evaluations_;
  /// Sums over the passes of an evaluation.
  struct Evaluated {
    kernels::FixedSum loss, weight;
    StepReport report;
    std::vector<std::int64_t> groups, routers, preferences;
  } evaluated_;
  enum class StateCopy : std::uint8_t { none, awaited, made, cancelled };
  StateCopy copy_ = StateCopy::none;  ///< of the next or the last step
  std::int64_t longest_ = 0;          ///< longest document of the rope tables; 0: batch.sequence_length
  double waited_for_copies_ = 0, learning_rate_ = 0;
};

}  // namespace tessera
