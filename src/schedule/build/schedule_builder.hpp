// Inside of builder.hpp: one class whose methods stand in eight files. builder.cpp holds the programs, builder_buffers.cpp what they keep,
// builder_micro_batch.cpp forward and backward with their gathers and reductions, builder_update.cpp the end of a step,
// builder_offload.cpp state that is not where kernels are, builder_pipeline.cpp a stage of a pipeline, builder_weights.cpp gradients
// of weights that come later, builder_generate.cpp a text.
#pragma once
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "model/record/recompute.hpp"
#include "schedule/build/builder.hpp"
#include "schedule/build/pipeline_order.hpp"
#include "zero/residency.hpp"
#include "zero/unit_plan.hpp"

namespace tessera {

/// Builds one schedule: declares buffers, binds operands to them, and emits tasks section by section.
class ScheduleBuilder {
 public:
  explicit ScheduleBuilder(const BuildRequest& request);
  Schedule build();

 private:
  /// A section's passes in order, by their number: the events that residencies are planned over.
  using Events = std::vector<int>;

  /// A residency's gathered copy.
  struct Gathered {
    Residency live;
    int buffer;
  };

  // ---- Programs (builder.cpp) ----

  void build_train();
  /// The programs where updates are late. `first`: the phase that begins the micro-batches, and is all of them if it is the `only` one.
  void build_late(const Events& passes, const PipelinePhase& first, bool only);
  void build_evaluate();
  void build_publish();
  /// Copies of what this rank saves, which a save writes while steps change the state.
  void build_saving();
  void emit_begin();
  void begin_section(const std::string& name);
  Task& emit(Task task);
  int last_section() const { return static_cast<int>(schedule_.sections.size()) - 1; }

  // ---- What units are (builder.cpp) ----

  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  int units() const { return static_cast<int>(layout_.units.size()); }
  const Unit& unit_at(int unit) const { return layout_.units[index(unit)]; }
  const UnitPlan& plan(int unit) const { return plans_[index(unit)]; }
  DType compute() const { return deck_.precision.compute; }
  std::int64_t compute_bytes(std::int64_t n) const { return n * static_cast<std::int64_t>(size_of(compute())); }
  /// Of a unit's elements where kernels read them.
  std::int64_t parameter_bytes(int unit, std::int64_t n) const { return n * static_cast<std::int64_t>(size_of(type_of(unit))); }
  DType type_of(int unit) const { return unit_at(unit).type(compute()); }
  /// Of gradients as the step keeps them, and as they meet.
  std::int64_t gradient_bytes(int unit, std::int64_t n) const { return n * static_cast<std::int64_t>(size_of(plan(unit).gradient.kept)); }
  std::int64_t sum_bytes(int unit, std::int64_t n) const { return n * static_cast<std::int64_t>(size_of(plan(unit).gradient.sum)); }
  /// Elements of a unit in its compute copy on this rank, and in its gradients' sum as norm and optimizer read it.
  Use parameter_use(int unit, const Range& elements, Access access) const;
  Use gradient_use(int unit, const Range& elements, Access access) const;
  bool has_experts() const { return schedule_.shape.experts.E > 0; }
  bool offloads() const { return request_.training() && deck_.zero.offload_optimizer.device != OffloadDevice::none; }
  bool offloads_parameters() const { return request_.training() && deck_.zero.offload_param.device != OffloadDevice::none; }
  /// The tier of what copies to and from the host touch there.
  Tier below(bool pinned) const { return on_gpu() && pinned ? Tier::pinned : Tier::host; }

  // ---- Buffers (builder_buffers.cpp) ----

  /// Declares a buffer, or widens the one of this name.
  int buffer(const std::string& name, Category category, Tier tier, std::int64_t bytes, Life life = Life::section);
  bool on_gpu() const { return schedule_.shape.backend == kernels::Backend::cuda; }
  Use whole(int id, Access access) const { return {id, 0, schedule_.buffers[index(id)].bytes, access}; }
  Use absent() const { return {named("scalars"), 0, 0, Access::read}; }
  int named(const std::string& name) const { return by_name_.at(name); }
  void declare_persistent();
  /// The use of this micro-batch: its slot.
  Use slot(const std::string& name, const SegmentPass& p) const;
  /// Whether some segment uses a value of this kind.
  bool uses(ValueKind kind) const;

  /// A buffer that the host fills before a program, with its twin in pinned memory where kernels cannot read what the host writes.
  void input(const std::string& name, Category category, std::int64_t bytes, std::int64_t slots = 1);
  static std::string host_side(const std::string& name) { return "host." + name; }
  /// The buffer that host code uses: the twin, where there is one.
  std::string on_host(const std::string& name) const { return on_gpu() ? host_side(name) : name; }
  void emit_copy(const char* verb, const std::string& to, const std::string& from);
  void emit_upload(const std::vector<std::string>& names);
  void emit_download(const std::string& name);

  void declare_unit(int unit);

  bool keeps_packed(const ValueInfo& v) const;
  static std::string packed_name(const ValueInfo& v);
  void declare_packed();
  /// After a unit's compute copies have changed.
  void emit_pack(int unit);

  // ---- A micro-batch (builder_micro_batch.cpp) ----

  /// Reads the model's record for a training step: forward passes in order, backward passes in reverse.
  Events training_passes();
  /// Which passes make a unit's gradient.
  void note_writers(const Events& events);
  /// Forward passes that keep nothing, of the segments from `first` on.
  Events forward_passes(std::size_t first = 0);
  /// As tasks: one, or where it has collectives several.
  void add_pass(Events& events, const SegmentPass& pass);
  const SegmentPass& pass(int number) const { return schedule_.passes[index(number)]; }
  const ValueInfo& value_of(const SegmentPass& p, const Operand& o) const { return schedule_.segments[index(p.segment)].at(o.value); }
  /// Units that this pass gathers, in order, each once.
  std::vector<int> gathered_units(const SegmentPass& p) const;
  std::vector<Residency> residencies(const Events& events) const;
  /// Emits the passes of a section with the gathers they need, as one of the phases that `turn` describes.
  void emit_events(const Events& events, const PipelinePhase& turn);
  void emit_pass(int number, int event, bool first);
  /// A collective that stands in a segment's text.
  void emit_exchange(const SegmentPass& pass, const Exchange& exchange, int event, bool first);
  Use bind(const Operand& o, const SegmentPass& p, int event, bool first);
  /// What collectives touch lies where they can: streams, and what the text exchanges.
  Tier tier_of(const ValueInfo& v) const;
  Use activation_use(const std::string& name, const ValueInfo& v, Access access);
  /// The stream that leaves a segment, as a pass sees it.
  std::string stream_name(const SegmentPass& p, int segment) const;
  Use stream_use(const SegmentPass& p, int stream, const ValueInfo& v, Access access);

  void emit_gather(const Residency& r, int number, const Events& events);
  Use weight_use(const std::string& tensor, int event) const;

  /// Where kernels write a unit's gradient: the step's sum, or a buffer of this micro-batch.
  int gradient_buffer(int unit);
  Use tensor_gradient_use(const std::string& tensor, const SegmentPass& p, bool first);
  void emit_zero_padding(int unit, int target);
  /// Units whose gradient is complete after each event.
  std::vector<std::vector<int>> gradients_done(const Events& events) const;
  /// Tensors by the event after which one of two segments that use them has given its gradient (tied embeddings). In exact sums each is
  /// rounded alone, as it is on the two stages of a pipeline that have one each.
  std::map<int, std::string> gradients_shared(const Events& events) const;
  /// A unit's gradient of this micro-batch is complete: into the step's sum, and to its owner where the stage says so.
  void emit_gradient_done(int unit, bool first, bool last);
  /// Sums of a unit meet over ranks, and go where the step keeps them.
  void emit_meeting(int unit, int whole, bool first, bool last);
  /// Those that were put off until the gradient of the next unit is complete: till then their bytes are their own, so that the backward
  /// pass of that unit waits for no reduction.
  void emit_meetings_put_off();
  /// Those with the other end of the pipeline: at the end of the last section, `ends`, since what comes after one on its lane waits for
  /// that stage; sooner what does not outlive its section.
  void emit_meetings_of_ends(bool ends);
  /// Whether reductions run beside the backward pass, at the cost of one more unit's gradient in memory.
  bool overlaps() const;
  /// The micro-batch's gradient as it meets that of other ranks, and where all elements of it stand.
  int emit_sum(int unit, int micro, bool first);
  /// The buffer of exact or rounded sums.
  int sum_buffer(int unit);
  void emit_shared_sum(const std::string& tensor, bool first);
  void emit_accumulate(int unit, const Range& elements, bool first);
  /// Where this rank's part of the sum over ranks, in the type in which they meet, comes to lie.
  Use where_sums_meet(int unit, int whole, const Range& mine, bool meets, Access access);
  void emit_rounding(int unit, const Use& to, const Use& from, DType type);
  /// Of a sum's magnitude: what it will be added to must not wrap.
  std::int64_t fixed_limit_of(int unit) const;
  /// Sums meet: `whole` is a buffer with all elements of the unit, `to` has room for those that this rank owns.
  void emit_all_reduce(int unit, int whole);
  /// Sums of a step, of this rank's part of a unit.
  void emit_meeting_of_replicas(int unit, const Use& sums);
  void emit_reduce_scatter(int unit, int whole, const Use& to, bool accumulate);
  /// Elements of a unit's gradient as the step keeps it, where reductions leave them.
  Use kept_use(int unit, const Range& elements, Access access);
  Use reduce_workspace(int unit, std::int64_t count, bool accumulate);

  // ---- A stage of a pipeline (builder_pipeline.cpp) ----

  bool pipelined() const { return request_.stage.count > 1; }
  std::vector<PipelinePhase> step_order() const;
  /// Micro-batches of an evaluation, a chunk a section.
  void build_evaluated_chunks(const Events& passes);
  /// The passes of a phase, which the next section has.
  Events events_of(const PipelinePhase& phase, const Events& passes);
  /// Of the stage's chunks.
  int chunk_of(int segment) const { return chunks_[index(segment)]; }
  bool begins_chunk(int segment) const { return segment == 0 || chunk_of(segment - 1) != chunk_of(segment); }
  /// The number of a chunk among those of all stages: its virtual stage.
  int virtual_stage(int chunk) const { return chunk * request_.stage.count + request_.stage.number; }
  /// Whether gradients of weights are apart from the backward passes.
  bool parts_backward() const { return deck_.pipeline.schedule == PipelineSchedule::zero_bubble && request_.stage.number > 0; }

  // ---- Gradients of weights apart from the backward passes (builder_weights.cpp) ----

  /// A backward pass and what of it comes later, which `weights` gets.
  void add_parted(Events& events, Events& weights, int segment);
  /// What the passes for weights read of those before them.
  void note_waiting(const Events& weights);
  /// The gradient of a parted segment's stream is kept for its weights before it turns into that of the stream before.
  void emit_kept_gradient(const Events& events, int event);
  /// What backward passes have written of a unit's gradient joins what those for its weights write.
  void emit_joined_gradients(int unit);
  Use waiting_gradient_use(const std::string& tensor, Access access, std::int64_t shift);
  std::string made_again_name(const SegmentPass& p, const ValueInfo& v) const;
  /// How far a pass's micro-batch is ahead of its section's.
  std::int64_t shift_of(const SegmentPass& p) const;
  /// A buffer that several micro-batches have a slot of.
  Use in_slots(const std::string& name, Tier tier, std::int64_t bytes, std::int64_t slots, Access access, std::int64_t shift,
               Category category = Category::activations, Life life = Life::program);
  /// What a forward pass keeps for the backward pass of its micro-batch.
  Use kept_use(const std::string& name, const ValueInfo& v, const SegmentPass& p, Access access);
  /// What a backward pass keeps for the gradients of weights.
  Use waiting_use(const std::string& name, const ValueInfo& v, const SegmentPass& p, Access access);
  Use activation_of(const Operand& o, const SegmentPass& p, const ValueInfo& v);
  /// Streams at the borders of a stage, and their gradient, which turns from that of one into that of the other.
  enum class Boundary : std::uint8_t { incoming, outgoing, gradient };
  std::string boundary_name(Boundary what, int chunk) const;
  Use boundary(Boundary what, int chunk, Access access, std::int64_t shift);
  std::int64_t stream_elements() const;
  void emit_transfer(int chunk, bool forward, bool sends);
  /// Passes in one direction that follow each other: where the one after an event, or before it, is not of them.
  bool goes_on(const Events& events, int event, int other) const;
  /// What comes from a neighbour before this event, and what leaves after it.
  void emit_arrivals(const Events& events, int event);
  void emit_departures(const Events& events, int event);

  // ---- Optimizer state below the memory that kernels use (builder_offload.cpp) ----

  void declare_offload();
  /// Elements that are on their way at a time: a piece goes up while the next is updated.
  std::int64_t offload_piece() const;
  /// What host code reads or writes beside a piece that is under way: buffers in turn.
  int staging(const std::string& name, std::int64_t bytes);
  Tier tier_of(const Use& use) const { return schedule_.buffers[index(use.buffer)].tier; }
  /// Where optimizer state lies that is offloaded, and an offloaded shard of compute copies.
  Tier state_home() const;
  Tier shard_home(int unit);
  /// Emits a task of host code. What it uses on disk passes through staging: read before it, written after it. Where its uses lie in
  /// memory.
  std::vector<Use> emit_on_host(Task task);
  /// The bytes of a use on disk, read into staging; of one in memory, the use.
  Use read_from_disk(const std::string& unit, const Use& use);
  void emit_disk(const char* verb, const std::string& unit, const std::vector<std::pair<Use, Use>>& moves);
  /// This rank's part of a unit's gradient goes down; the first one starts the step's sum. The last one's norm is taken there.
  void emit_gradient_down(int unit, const Use& part, bool first, bool last);
  void emit_offloaded_norm(int unit);
  void emit_offloaded_optimizer(int unit);
  /// Where host code leaves a piece of the compute copy: in its place, or beside it, to come up; of no bytes where that is the master's.
  Use made_on_host(int unit, const Range& elements);
  /// A piece of the compute copy comes up from there, or from the master weights, where its place is with the kernels.
  void emit_copy_up(int unit, const Range& elements, const Use& from);
  /// A unit's shard comes up for a gather, and where it is all of the unit it is that.
  Use emit_upload_shard(int unit, int number, int target);
  /// Makes the compute copy from the master weights.
  void emit_offloaded_cast(int unit);
  Use master_use(int unit, const Range& elements, Access access) const;
  /// Kept streams that wait elsewhere: between which passes of these.
  void plan_absences(const Events& events);
  /// Streams that leave after this event, or come back before it.
  void emit_absences(int event, bool leave);
  static std::string returned(int stream) { return "returned.stream." + std::to_string(stream); }

  // ---- A text (builder_generate.cpp) ----

  void build_text();
  void free_idle_requests();
  void build_text_pass(Program& program, const char* name, Feed feed);
  Use bind_of_text(const Operand& o, const std::string& segment, const ValueInfo& v);

  // ---- The end of a step (builder_update.cpp) ----

  void emit_epilogue();
  /// Whether a step leaves its update to the next, so that it runs beside the forward pass. Where kernels make it, nothing would be won.
  bool updates_late() const { return offloads(); }
  void emit_updates();
  void emit_update(int unit);
  /// From here on a unit's update comes before its first use.
  void owe_updates();
  void emit_owed_update(int unit);
  void emit_norm(int unit);
  void emit_finish(bool evaluation);
  /// Int64 totals of a buffer over all ranks, for the host to read.
  void emit_totals(const char* what, const char* name);
  /// The biases of routers move by the step's loads.
  void emit_balance();
  BalanceRouters balance_of(const Unit& untrained) const;
  void emit_optimizer(int unit);
  OptimizerStep optimizer_step(int unit, const Range& elements) const;
  /// Where compute copies are whole but each rank updates its own shard, the shards are gathered in place.
  void emit_publish_gather(int unit, Lane lane);
  /// Whether shards of other replicas join a rank's part of a compute copy as a program begins, beside its first passes. With late updates
  /// they do so after the update, as whole copies always do.
  bool refreshed_first(int unit) const;

  const BuildRequest& request_;
  const Deck& deck_;
  const Layout& layout_;
  std::vector<UnitPlan> plans_;  ///< by unit
  Schedule schedule_;
  std::unordered_map<std::string, int> by_name_;
  std::vector<std::vector<const ValueInfo*>> packed_;  ///< of each unit, every packed copy once: the head's passes share one
  std::vector<std::vector<Gathered>> gathered_;        ///< of each unit, in this section
  std::set<std::string> touched_;                      ///< tensors whose gradient this section has begun
  std::set<int> summed_;                               ///< units whose exact sum holds a part of this micro-batch already
  std::set<int> touched_units_;                        ///< units whose micro-batch buffer is live
  struct PutOff {
    int unit = 0, whole = 0;           ///< and the buffer with all elements of its sum
    bool first = false, last = false;  ///< of the step's
  };
  std::vector<PutOff> put_off_;          ///< meetings, in order
  std::vector<PutOff> at_end_;           ///< meetings with the other end of the pipeline, which come after all that goes there
  std::vector<int> chunks_;              ///< by segment
  std::vector<InFlight> flights_;        ///< by chunk, of a training step; else none
  std::int64_t ahead_ = 0, behind_ = 0;  ///< of this section's forward passes, and of its gradients of weights
  /// Of the passes that write a unit's gradient.
  struct Writers {
    bool weights = false;                 ///< those for weights alone end it
    int first_chunk = 0, last_chunk = 0;  ///< in the order of the backward passes
  };
  std::map<int, Writers> writers_;                          ///< by unit
  std::set<std::string> waits_;                             ///< kept values that gradients of weights read
  std::set<int> keeps_gradient_;                            ///< segments whose gradient of the stream waits for those of weights
  std::map<int, std::set<std::string>> waiting_gradients_;  ///< by unit: tensors whose gradient backward passes have written
  std::vector<bool> owed_;                                  ///< by unit: updates that this section has still to make
  ActivationPlan activations_;
  struct Absence {
    int leaves_after = 0, returns_before = 0;  ///< events
  };
  std::map<int, Absence> absences_;             ///< by stream, of this section
  Tier local_tier_ = Tier::host;                ///< where kernels work
  Tier comm_tier_ = Tier::host;                 ///< what collectives touch
  Tier below_ = Tier::host;                     ///< where gradients and pieces of the optimizer pass
  std::map<std::string, std::int64_t> staged_;  ///< pieces that have been staged, by what they are
  std::int64_t parameters_on_host_ = 0;         ///< elements of offloaded shards that max_in_cpu has kept from the disk
};

}  // namespace tessera
