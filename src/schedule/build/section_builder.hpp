// Tasks of one section. The class is made for a section and gone with it; its methods stand in files by topic: section_passes.cpp has the
// passes of a micro-batch and their gathers, section_gradients.cpp what becomes of their gradients, section_parted.cpp gradients of weights
// that come later, section_pipeline.cpp the borders of a stage, section_offload.cpp state that is not where kernels are,
// section_towers.cpp sums of towers beside the model, section_matrices.cpp updates that take whole matrices, section_fp8.cpp scales of fp8,
// section_signs.cpp momenta as signs, section_update.cpp the end of a step.
#pragma once
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "schedule/build/buffers.hpp"
#include "schedule/build/step_passes.hpp"

namespace tessera {

class SectionBuilder {
 public:
  /// Begins a section of `sections`, which outlive the builder as all else does. `turn` describes its passes.
  SectionBuilder(const Frame& frame, Buffers& buffers, Passes& passes, StepPasses& step, std::vector<Section>& sections, std::string name,
                 PipelinePhase turn = {});

  /// Of the section, among all.
  int number() const { return number_; }
  Task& emit(Task task);

  // ---- A micro-batch ----

  /// The passes of a section with the gathers they need.
  void emit_events(const Events& events);
  /// From here on a unit's update comes before its first use.
  void owe_updates();
  /// Sums that meet with the other end of the pipeline: at the end of the last section, `ends`, since what comes after one on its lane
  /// waits for that stage; sooner what does not outlive its section.
  void emit_meetings_of_ends(bool ends);

  // ---- Begin and end of a program ----

  void emit_begin();
  /// Before anything reads it, what gradients of sums over tokens are multiplied by.
  void emit_gradient_scale();
  /// Int64 of the step's scalars become those of all ranks.
  void emit_sums_over_ranks(const std::string& name, std::int64_t first, std::int64_t count, const std::string& scalars = "scalars");
  /// A step's sums of a tower that trains nothing, and what the host reads of them.
  void emit_begin_of(const Tower& tower);
  void emit_finish_of(const Tower& tower);
  void emit_upload(const std::vector<std::string>& names);
  void emit_download(const std::string& name);
  void emit_epilogue();
  void emit_updates();
  void emit_finish(bool evaluation);
  /// A unit's compute copy from its master weights, also where they are offloaded.
  void emit_cast(int unit);
  /// Where compute copies are whole but each rank updates its own shard, the shards are gathered in place.
  void emit_publish_gather(int unit, Lane lane);
  /// What blocks have taken from gradients begins at zero.
  void emit_errors_cleared();
  /// After a unit's compute copies have changed.
  void emit_pack(int unit);
  /// The scales of delayed scaling, of histories; `enters`: which the step's largest magnitudes of all ranks join before.
  void emit_fp8_scales(bool enters);

 private:
  /// A residency's gathered copy.
  struct Gathered {
    Residency live;
    int buffer;
    std::optional<Use> blocks = {};       ///< that it is decoded from before its first use
    std::optional<Use> multipliers = {};  ///< of its matrices, where codes are not of delayed scaling
  };

  void emit_copy(const char* verb, const std::string& to, const std::string& from);

  // ---- Passes and their gathers (section_passes.cpp) ----

  /// Units that this pass gathers, in order, each once.
  std::vector<int> gathered_units(const SegmentPass& p) const;
  std::vector<Residency> residencies(const Events& events) const;
  void emit_pass(int number, int event, bool first);
  /// A collective that stands in a segment's text.
  void emit_exchange(const SegmentPass& pass, const Exchange& exchange, int event, bool first);
  Use bind(const Operand& o, const SegmentPass& p, int event, bool first);
  Use bind_of_text(const Operand& o, const std::string& segment, const ValueInfo& v);
  /// How far a pass's micro-batch is ahead of its section's.
  std::int64_t shift_of(const SegmentPass& p) const;
  /// What collectives touch lies where they can: streams, and what the text exchanges.
  Tier tier_of(const ValueInfo& v) const;
  Use activation_use(const std::string& name, const ValueInfo& v, Access access);
  Use activation_of(const Operand& o, const SegmentPass& p, const ValueInfo& v);
  /// The stream that leaves a segment, as a pass sees it.
  std::string stream_name(const SegmentPass& p, SegmentNumber leaves) const;
  Use stream_use(const SegmentPass& p, SegmentNumber leaves, const ValueInfo& v, Access access);
  void emit_gather(const Residency& r, int number, const Events& events);
  /// This rank's part of a unit as it travels: bytes of `encoded`.
  void emit_encode(int unit, int number, const Use& encoded, const Use& values);
  /// The multipliers of its matrices, of whose elements each rank has some.
  Use emit_multipliers(int unit, int number, const Use& values);
  /// Of the runs of this rank's part, from its beginning.
  std::vector<EncodeRuns::Run> runs_of_part(int unit) const;
  Use multiplier_use(const ValueInfo& v, int unit, int event) const;
  /// Gathered copies that this event is the first to read are made of the blocks that came.
  void emit_decodes(int event);
  Use weight_use(const TensorRef& tensor, int event) const;

  // ---- Gradients of a micro-batch (section_gradients.cpp) ----

  /// Where kernels write a unit's gradient: the step's sum, or a buffer of this micro-batch.
  int gradient_buffer(int unit);
  Use tensor_gradient_use(const std::string& name, const TensorRef& tensor, const SegmentPass& p, bool first);
  void emit_zero_padding(int unit, int target);
  /// Units whose gradient is complete after each event.
  std::vector<std::vector<int>> gradients_done(const Events& events) const;
  struct Shared {
    std::string name;
    TensorRef tensor;
  };
  /// Tensors by the event after which one of two segments that use them has given its gradient (tied embeddings). In exact sums each is
  /// rounded alone, as it is on the two stages of a pipeline that have one each.
  std::map<int, Shared> gradients_shared(const Events& events) const;
  void emit_shared_sum(const Shared& shared, bool first);
  /// A unit's gradient of this micro-batch is complete: into the step's sum, and to its owner where the stage says so.
  void emit_gradient_done(int unit, bool first, bool last);
  /// Sums of a unit meet over ranks, and go where the step keeps them.
  void emit_meeting(const Meeting& meeting);
  /// Those that were put off until the gradient of the next unit is complete: till then their bytes are their own, so that the backward
  /// pass of that unit waits for no reduction.
  void emit_meetings_put_off();
  /// The micro-batch's gradient as it meets that of other ranks, and where all elements of it stand.
  int emit_sum(int unit, int micro, bool first);
  /// The buffer of exact or rounded sums.
  int sum_buffer(int unit);
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
  /// The same with terms in blocks.
  void emit_scatter_of_blocks(const Meeting& meeting, const Use& to);
  void emit_hop(int unit, const GradientHop& hop, const Use& terms, const Use& to, const Meeting& meeting);
  /// `first`: of the step's terms.
  Task encoding_of_terms(int unit, const GradientHop& hop, const Use& blocks, const Use& terms, bool first) const;
  /// Elements of a unit's gradient as the step keeps it, where reductions leave them.
  Use kept_gradient(int unit, const Range& elements, Access access);

  // ---- Gradients of weights apart from the backward passes (section_parted.cpp) ----

  /// The gradient of a parted segment's stream is kept for its weights before it turns into that of the stream before.
  void emit_stream_gradient_for_weights(const Events& events, int event);
  /// What backward passes have written of a unit's gradient joins what those for its weights write.
  void emit_joined_gradients(int unit);
  Use waiting_gradient_use(const std::string& name, const TensorRef& tensor, Access access, std::int64_t shift);
  /// What a backward pass keeps for the gradients of weights.
  Use waiting_use(const std::string& name, const ValueInfo& v, const SegmentPass& p, Access access);

  // ---- Borders of a stage (section_pipeline.cpp) ----

  /// What a forward pass keeps for the backward pass of its micro-batch.
  Use kept_use(const std::string& name, const ValueInfo& v, const SegmentPass& p, Access access);
  Use boundary(Boundary what, const SegmentPass& p, Access access, std::int64_t shift);
  /// Of what a pass takes or gives.
  void emit_transfer(const SegmentPass& p, bool sends);
  /// Passes in one direction that follow each other: where the one after an event, or before it, is of them.
  bool goes_on(const Events& events, int event, int other) const;
  /// What comes from a neighbour before this event, and what leaves after it.
  void emit_arrivals(const Events& events, int event);
  void emit_departures(const Events& events, int event);

  // ---- State below the memory that kernels use (section_offload.cpp) ----

  /// Emits a task of host code. What it uses on disk passes through staging: read before it, written after it. Where its uses lie in
  /// memory.
  std::vector<Use> emit_on_host(Task task);
  /// The bytes of a use on disk, read into staging; of one in memory, the use.
  Use read_from_disk(const std::string& unit, const Use& use);
  void emit_disk(const char* verb, const std::string& unit, const std::vector<std::pair<Use, Use>>& moves);
  /// This rank's part of a unit's gradient goes down; the first one starts the step's sum. The last one's norm is taken there.
  void emit_gradient_down(int unit, const Use& part, bool first, bool last);
  void emit_offloaded_norm(int unit);
  /// An update of state that lies there; where weights change, the compute copy comes up.
  void emit_optimizer_below(int unit, const Range& elements, Task task, bool changes);
  void emit_offloaded_cast(int unit);
  /// Where host code leaves a piece of the compute copy: in its place, or beside it, to come up; of no bytes where that is the master's.
  Use made_on_host(int unit, const Range& elements);
  /// A piece of the compute copy comes up from there, or from the master weights, where its place is with the kernels.
  void emit_copy_up(int unit, const Range& elements, const Use& from);
  /// A unit's shard comes up for a gather, and where it is all of the unit it is that.
  Use emit_upload_shard(int unit, int number, int target);
  /// Kept streams that wait elsewhere: between which passes of these.
  void plan_absences(const Events& events);
  /// Streams that leave after this event, or come back before it.
  void emit_absences(int event, bool leave);
  static std::string returned(int stream) { return "returned.stream." + std::to_string(stream); }

  // ---- Updates of whole matrices (section_matrices.cpp) ----

  /// A unit's matrices, each at one of the ranks that share its state.
  struct WholeMatrices {
    int unit = 0;
    Group parts = {}, sharing = {};  ///< ranks that have a part of each, and those that divide them among themselves
    struct Place {
      int owner = 0;
      std::int64_t offset = 0;  ///< in the owner's block of results
    };
    std::vector<Place> places = {};  ///< by slot
    std::int64_t block = 0;          ///< elements of an owner's results, at most
  };
  bool takes_matrices(int unit) const;
  /// Of all units that take them, some at a time.
  void emit_updates_of_matrices();
  void emit_updates_of_matrices(const std::vector<int>& units);
  Group parts_of_matrices(int unit) const;
  Group sharing_matrices(int unit) const;
  /// What is made orthogonal, in bf16, and then what came of it: elements of a unit, where kernels are.
  Use matrices_of(int unit, const Range& elements, Access access);
  void emit_gather_of_matrices(int unit);
  std::vector<WholeMatrices> whole_matrices(const std::vector<int>& units) const;
  Use results_of(const WholeMatrices& whole, int first, int count, Access access);
  Orthogonalize::Matrix matrix_of(const WholeMatrices& whole, std::size_t slot) const;
  void emit_orthogonal(const WholeMatrices& whole);
  void emit_results(const WholeMatrices& whole);
  /// To where a unit's state lies below, or from there.
  void emit_matrices_between_tiers(int unit, const Range& elements, const Use& below, bool up);

  // ---- Momenta that meet as signs (section_signs.cpp) ----

  SignBlocks sign_blocks(int unit) const;
  Use signs_of(const char* which, int unit, std::int64_t first, std::int64_t ranks, Access access);
  Task packing_of_signs(int unit, const Use& blocks, const Use& error, const Use& momenta, bool of_mean);
  /// Each rank's to those who take the mean of a part.
  void emit_exchange_of_signs(int unit);
  /// Of the means to all.
  void emit_gather_of_signs(int unit);
  void emit_momenta_of_signs(int unit);

  // ---- The end of a step (section_update.cpp) ----

  void emit_update(int unit);
  /// Whether another phase follows.
  bool emit_update_phase(int unit, std::size_t phase);
  /// What an update sums of each of a unit's tensors, or of their rows and columns, where its kernels run.
  Use tensor_sums(int unit, UpdateOperand::Kind kind, Access access);
  std::string name_of_sums(int unit, UpdateOperand::Kind kind) const;
  /// What ends a phase of an update.
  void emit_meeting(int unit, UpdateOperand::Kind kind);
  /// They become those of all elements: over the ranks that have others of the unit's.
  void emit_meeting_of_sums(int unit, UpdateOperand::Kind kind);
  void emit_owed_update(int unit);
  /// Whether a step makes a unit's packed copies again: those of frozen weights too where their scale moves.
  bool packs_again(int unit) const { return frame_.unit_at(unit).learns() || has_scale(unit); }
  bool has_scale(int unit) const { return frame_.shape.fp8.delayed() && frame_.unit_at(unit).tower.empty(); }
  /// Of a buffer with a number a history those of some tensors, and that of a weight; of no bytes without histories.
  Use fp8_of(const char* buffer, kernels::Fp8Tensor first, kernels::Fp8Tensor last, Access access) const;
  Use fp8_of_weight(const char* buffer, const std::string& weight, Access access) const;
  void emit_norm(int unit);
  /// Int64 totals of a buffer over all ranks, for the host to read.
  void emit_totals(const char* what, const char* name);
  /// The biases of routers move by the step's loads.
  void emit_balance();
  BalanceRouters balance_of(const Unit& untrained) const;
  /// A phase of the update of a unit, piece by piece, where their state is.
  void emit_optimizer(int unit, const std::vector<UpdateCall>& calls);
  /// Where an operand of an update lies.
  Use bind(const UpdateUse& use, int unit, const Range& elements);
  OptimizerStep optimizer_step(int unit, const Range& elements, const UpdateCall& call) const;
  /// Of a compute copy that lies in blocks: they are made of master weights.
  Task encoding(int unit, const Range& elements, const Use& to, const Use& master) const;

  const Frame& frame_;
  Buffers& buffers_;
  Passes& passes_;
  StepPasses& step_;
  std::vector<Section>& sections_;
  const int number_;
  const PipelinePhase turn_;

  std::vector<std::vector<Gathered>> gathered_;             // of each unit
  std::map<int, std::set<std::pair<int, int>>> to_decode_;  // by event: units and which of their copies
  std::set<std::string> touched_;                           // tensors whose gradient has begun
  std::set<int> summed_;                                    // units whose exact sum holds a part of this micro-batch already
  std::set<int> touched_units_;                             // units whose micro-batch buffer is live
  std::vector<Meeting> put_off_;                            // in order
  std::vector<bool> owed_;                                  // by unit: updates that are still to make
  struct Absence {
    int leaves_after = 0, returns_before = 0;  // events
  };
  std::map<int, Absence> absences_;  // by stream
};

}  // namespace tessera
