// One rank's model at work: its plan, memory, state and executor. Knows steps; knows nothing of files, logs or the order of data.
#pragma once
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

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
  /// File of a KernelSearch: which algorithms run products, whose attention; empty: no search.
  std::string kernel_choices = {};
  /// Kernels of the host are timed, call by call.
  bool times_calls = false;
  /// For tests, on the host and one lane: memory is NaN where a buffer begins its life in it.
  bool poison = false;
};

/// By what a rank reaches the others; empty for one alone.
struct RankLinks {
  Communicators communicators = {};
  Node* node = nullptr;  ///< where shared arenas are registered; it must outlive the engine
};

/// Of this rank's part of a batch; a step's report has sums over ranks. What ranks share one of them counts.
struct BatchCounts {
  std::int64_t document_squares = 0;  ///< of documents' lengths, where they are masked
  std::int64_t padding = 0;           ///< tokens
};

struct StepOptions {
  bool stop = false;             ///< asks all ranks to stop: the report says whether any rank asked
  bool rehearsal = false;        ///< computes the step and moves nothing, so that it can be made once more
  Timeline* timeline = nullptr;  ///< becomes that of the step's tasks
  BatchCounts counts = {};
};

/// Of an evaluation: evaluation_micro_batches of each rank.
struct EvaluationPass {
  std::int64_t tokens = 0;   ///< of the micro-batches of weight 1, over all ranks
  std::int64_t padding = 0;  ///< of these, counted as BatchCounts says
  bool goes_on = false;      ///< its sums join those of the pass before
  bool stop = false;         ///< as StepOptions has it
};

/// Of a group of tokens.
struct GroupLoss {
  double sum = 0, weight = 0;
  std::int64_t targets = 0;  ///< that these are sums over
};

class Engine {
 public:
  /// Allocates what was planned: see fit.hpp for whether there is room.
  explicit Engine(RunPlan plan, const EngineOptions& options = {}, RankLinks links = {});
  /// Of a run in phases, a plan each (deck/ramp.hpp): allocates what the largest needs, by tier. Begins in the first.
  explicit Engine(std::vector<RunPlan> phases, const EngineOptions& options = {}, RankLinks links = {});
  Engine(const Engine&) = delete;

  std::size_t phase() const { return phase_; }
  /// Goes on in another phase: the state stays where it lies, and the run's values go along. Not while a step is to copy, nor while other
  /// ranks read this one's memory. Collective over the group.
  void enter(std::size_t phase);
  /// The same where the state is to be made yet, or read.
  void begin_in(std::size_t phase);

  /// Of the phase.
  const RunPlan& planned() const { return plan_; }
  const Schedule& schedule() const { return plan_.schedule; }
  const MemoryPlan& plan() const { return plan_.memory; }
  const Layout& layout() const { return plan_.layout(); }
  const Group& data() const { return plan_.request.data; }
  std::int64_t accumulation() const { return accumulation_steps(plan_.request.deck, data().size); }
  /// The most that a phase needs, by tier.
  const TierBytes& room() const { return room_; }
  /// Bytes that tasks touch, by tier, as the executor addresses them, in the phase that touches most; those of a training run equal the
  /// room, which is asserted.
  const TierBytes& used_bytes() const { return used_; }

  /// What ModelState says, with the compute copies made from it; collective over the group.
  void initialise_weights();
  void set_weights(const std::function<void(const Parameter&, std::int64_t, std::span<float>)>& value);
  /// Reads this rank's part of a checkpoint; publish() follows. Not collective, so that a rank's fault can be agreed on.
  void read_state(const io::CheckpointReader& reader) {
    state_.load(reader);
    evaluations_ = EvaluationRecord::of(reader.meta().values);
  }
  /// The same of weights that stand elsewhere, for a run that begins with them.
  void read_weights(const WeightSource& source) const { state_.read(source); }
  /// Makes the compute copies from the master weights; collective over the group.
  void publish() { executor_->run(ProgramKind::publish), pending_ = false; }
  /// Makes the update that the last step has left, where updates are late. Collective over the group; evaluate() does it itself.
  void settle();
  /// Where saves go on beside steps: has the next step copy what a save writes before it changes it. Of a settled engine.
  void copy_with_next_step();
  /// Whether there was no step since, and then none will copy. Whoever else has asked for the same copy hears the same.
  bool cancel_copy() {
    if (copy_ == StateCopy::awaited) copy_ = StateCopy::cancelled;
    return copy_ == StateCopy::cancelled;
  }
  /// Whether the step under way has copied all, for another thread, with checkpoint.neighbour_every.
  bool copies_are_made() const;
  /// What a step has copied: valid until another copies.
  std::vector<io::ShardSlice> copied_slices() const { return state_.copied_slices(); }
  io::CheckpointLayout checkpoint_layout() const { return state_.checkpoint_layout(); }
  bool constants_on_host() const { return state_.constants_on_host(); }
  /// Seconds in which the last step that copied did nothing else.
  double waited_for_copies() const { return waited_for_copies_; }
  /// What the run carries beside the state of its parameters, after the last step; and as a checkpoint holds it.
  const kernels::RunValues& run_values() const { return value<kernels::RunValues>("run"); }
  std::vector<io::CheckpointValue> saved_run_values() const;
  /// What the run remembers of its evaluations: no task reads it, and saves hold it.
  EvaluationRecord& evaluations() { return evaluations_; }
  const EvaluationRecord& evaluations() const { return evaluations_; }
  /// Whether this rank begins anew with what a checkpoint holds of each rank alone (ModelState). A pending update may be left: what is read
  /// takes its place.
  bool leaves_own(const io::CheckpointReader& reader) const { return state_.leaves_own(reader); }
  /// Of a settled engine: what is read of it is what a save writes.
  const ModelState& state() const;

  /// The positions of each sequence that this rank has, in the order of its rows.
  std::vector<Range> positions() const;
  /// An input of micro-batch m of this rank for the next run, by its row of input_rows; empty where no task reads it.
  template <class T>
  std::span<T> input(std::string_view name, std::int64_t micro) const {
    const InputRow& row = *input_of(name);
    TESSERA_REQUIRE(row.bytes == sizeof(T), "{} are numbers of {} bytes", name, row.bytes);
    const int buffer = inputs_[static_cast<std::size_t>(&row - input_rows)];
    if (buffer < 0) return {};
    const std::int64_t n = row.numbers(schedule().shape);
    return {reinterpret_cast<T*>(memory_.address(buffer)) + micro * n, static_cast<std::size_t>(n)};
  }
  /// Its positions of B sequences each.
  std::span<std::int32_t> tokens(std::int64_t micro) const { return input<std::int32_t>("tokens", micro); }
  std::span<std::int32_t> targets(std::int64_t micro) const { return input<std::int32_t>("targets", micro); }
  /// What the loss of each token counts for: all 1 until they are written.
  std::span<float> row_weights(std::int64_t micro) const { return input<float>("row_weights", micro); }
  /// Of each token the group that its loss is summed with, or -1.
  std::span<std::int32_t> token_groups(std::int64_t micro) const { return input<std::int32_t>("token_groups", micro); }
  /// Where in its sequence the document of each of the B T tokens begins: of whole sequences, of which the rank may have a part.
  std::span<std::int32_t> document_starts(std::int64_t micro) const { return input<std::int32_t>("document_starts", micro); }
  /// 1 where a token is padding, for routers.
  std::span<std::int32_t> padding(std::int64_t micro) const { return input<std::int32_t>("padding", micro); }
  /// Says that the routers' losses of micro-batch m count, or that it only keeps ranks in step.
  void set_weight(std::int64_t micro, double weight) const {
    for (double& of : input<double>("weights", micro)) of = weight;
  }

  /// Of ModelShape::turns_by_longest: the next run's rotations are those of documents of at most so many tokens.
  void turn_by(std::int64_t longest);
  /// One optimizer step, the next after those that the run's values count; collective over the group.
  StepReport step(const StepOptions& options = {});
  /// What this rank has added to the loss and the squared norm of the last step, before they were summed over ranks: their bits.
  struct OwnSums {
    kernels::FixedSum loss, squares;
    bool not_finite = false;  ///< it has seen such a value
  };
  OwnSums own_sums() const;
  /// Computes the last step once more, of the batch that is there, and moves nothing: what a task of this rank was the first to write that
  /// is not finite. Collective over the group.
  std::optional<Finding> find_not_finite();
  /// The first value of this rank's weights and optimizer state that is not finite: "adam_v of ..., element 17 ... is nan"; else "".
  std::string state_not_finite() const;
  /// Of all ranks' state, whatever the layout: weights and what the optimizer keeps, 32 hexadecimal digits. Collective.
  std::string digest_of_state(const World& world);
  /// Of what other ranks have copies of too, beside disks. Collective where an update is pending.
  std::vector<CopyDigest> digest_copies();
  /// The next step takes samples from so much further on, which no step takes. Collective over the group.
  void leave_out(std::int64_t samples);
  /// Of the last step.
  double learning_rate() const { return learning_rate_; }
  /// Mean loss over the targets of the evaluation micro-batches of weight 1, and of those of the passes before it.
  StepReport evaluate(const EvaluationPass& pass);
  /// Over the targets of each group in the last step or evaluation, over all ranks; empty where there are no groups.
  std::vector<GroupLoss> group_losses() const;
  /// What the routers did in the last step or evaluation, over all ranks; none without experts.
  std::optional<RouterFigures> router_figures() const;
  /// A pass over a text: its prompt, or a token.
  void run(ProgramKind kind) { executor_->run(kind); }
  /// What the host writes before a program, or reads after it, where tasks use the named buffer; empty where there is none.
  template <class T>
  std::span<T> host_values(const std::string& buffer) const {
    const int id = memory_.host_side(buffer);
    if (id < 0) return {};
    const auto bytes = static_cast<std::size_t>(schedule().buffers[static_cast<std::size_t>(id)].bytes);
    return {reinterpret_cast<T*>(memory_.address(id)), bytes / sizeof(T)};
  }
  /// With EngineOptions::times_calls: what passes of the schedule have taken since this was last asked.
  CallSeconds take_call_seconds();
  const LaneTimes& times() const { return executor_->times(); }
  /// What the lanes are at; any thread may ask.
  void add_under_way(RankWork& work) const;
  /// How a disk tier works; empty where there is none.
  std::string how_disks_work() const { return memory_.disk() ? memory_.disk()->how() : ""; }

  /// Tests: this rank's copy of a tensor's summed gradient in fp32 after a step (whole gradients only: stage 0 or 1, or one rank), and its
  /// compute copy.
  std::vector<float> gradient_of(const std::string& tensor) const;
  std::vector<float> weight_of(const std::string& tensor) const;
  /// Where a tensor's compute copy begins (whole parameters only).
  const void* weight_address(const std::string& tensor) const;

 private:
  template <class T>
  T& value(const char* buffer) const {
    return *reinterpret_cast<T*>(memory_.address(memory_.host_side(buffer)));
  }
  /// What counts in this rank's micro-batches; nothing where another counts it.
  void count_targets(std::int64_t micro_batches, kernels::StepInputs& inputs) const;
  /// The executor of the plan, and what tasks find that nobody writes in a step.
  void make_ready();
  void fill_inputs() const;
  void fill_rope_tables() const;
  void fill_rope_table(int rotation) const;
  /// Where tokens stand, of a model that has learned positions.
  void fill_positions() const;
  kernels::StepInputs inputs_of_step(const StepOptions& options);
  void run_step(ProgramKind kind, Timeline* timeline);
  /// On a GPU: searches for the fastest kernels of the plan and loads all of them, on weights of noise, which it leaves zeroed.
  void warm_up(const std::string& kernel_choices);
  /// Zeroes the memory of a GPU and what is pinned for it.
  void clear_device();
  void fill_parameters_with_noise();
  /// Until what was asked of a GPU is done.
  void wait_for_device() const;

  std::vector<RunPlan> phases_;  ///< the place of the one that is entered is empty
  std::size_t phase_ = 0;
  TierBytes room_{}, used_{};
  RunPlan plan_;
  EngineOptions options_;
  RankLinks links_;
  RankMemory memory_;
  ModelState state_;
  std::vector<ChosenOptimizer> optimizers_;
  mutable std::mutex changes_;  ///< of the executor
  std::unique_ptr<Witness> witness_;
  CallSeconds call_seconds_;
  std::unique_ptr<Executor> executor_;
  std::array<int, std::size(input_rows)> inputs_{};  ///< buffers that the host fills, by row
  bool counts_targets_;                              ///< of ranks that have the same targets, along tp, the first counts them
  bool pending_ = false;                             ///< a step has left its update
  EvaluationRecord evaluations_;
  /// Sums of an evaluation's passes.
  struct Evaluated {
    kernels::FixedSum loss, weight;
    StepReport report;
    std::vector<std::int64_t> groups, routers;
  } evaluated_;
  enum class StateCopy : std::uint8_t { none, awaited, made, cancelled };
  StateCopy copy_ = StateCopy::none;  ///< that the next step makes, or the last one has made
  std::int64_t longest_ = 0;          ///< that rotations are those of; 0: batch.sequence_length
  double waited_for_copies_ = 0, learning_rate_ = 0;
};

}  // namespace tessera
