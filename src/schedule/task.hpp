// A step is a list of named tasks on lanes, with the buffers that each reads and writes. Everything else reads this list.
#pragma once
#include <array>
#include <iterator>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/hash.hpp"
#include "kernels/fp8_runs/fp8_runs.hpp"
#include "kernels/quantize/quantize.hpp"
#include "memory/arena.hpp"
#include "model/record/passes.hpp"
#include "optimizer/groups.hpp"
#include "optimizer/texts/update_text.hpp"
#include "topology/communicators/communicator.hpp"
#include "topology/mesh.hpp"
#include "zero/partition.hpp"

namespace tessera {

/// An ordered queue of tasks. Tasks of one lane run in the order of the list; lanes run side by side as far as buffers allow.
enum class Lane : std::uint8_t {
  compute,
  gather,
  reduce,
  tensor,
  context,
  experts,
  streams,
  stream_gradients,
  wrapped_streams,
  wrapped_gradients,
  upload,
  download,
  cpu_optimizer,
  disk_read,
  disk_write,
  snapshot,
  host_snapshot
};
struct LaneInfo {
  Lane lane;
  const char* name;
  bool collective;  ///< its tasks wait for other ranks: in a timeline they are communication
  bool on_host;     ///< its tasks are host code, also where the others are a GPU's
};
/// A row a lane, in the order of the enum. Waits, executors, timelines and traces have as many lanes as this has rows.
inline constexpr LaneInfo lanes[] = {
    {Lane::compute, "compute", false, false},
    {Lane::gather, "gather", true, false},
    {Lane::reduce, "reduce", true, false},
    {Lane::tensor, "tensor", true, false},
    {Lane::context, "context", true, false},
    {Lane::experts, "experts", true, false},
    {Lane::streams, "streams", true, false},
    {Lane::stream_gradients, "stream_gradients", true, false},
    {Lane::wrapped_streams, "wrapped_streams", true, false},
    {Lane::wrapped_gradients, "wrapped_gradients", true, false},
    {Lane::upload, "upload", false, false},
    {Lane::download, "download", false, false},
    {Lane::cpu_optimizer, "cpu_optimizer", false, true},
    {Lane::disk_read, "disk_read", false, true},
    {Lane::disk_write, "disk_write", false, true},
    {Lane::snapshot, "snapshot", false, false},
    {Lane::host_snapshot, "host_snapshot", false, true},
};
inline constexpr int lane_count = static_cast<int>(std::size(lanes));
constexpr const LaneInfo& info_of(Lane lane) { return lanes[static_cast<std::size_t>(lane)]; }
inline const char* name_of(Lane lane) { return info_of(lane).name; }
static_assert([] {
  for (int i = 0; i < lane_count; ++i)
    if (lanes[i].lane != static_cast<Lane>(i)) return false;
  return true;
}());

/// What the memory table counts.
enum class Category : std::uint8_t {
  parameters,
  master,
  state,
  gradients,
  gathered,
  packed,
  activations,
  workspace,
  inputs,
  scalars,
  caches,
  snapshot
};
inline constexpr int category_count = 12;
const char* name_of(Category);

/// How long a buffer's bytes are its own; at other times they may be another's.
enum class Life : std::uint8_t {
  section,  ///< in each section from its first use to its last
  program,  ///< in each program from its first use to its last; over sections that repeat from begin to end
  run       ///< always
};

/// Buffers begin on a page; on a disk, on a block of its engine.
inline constexpr std::int64_t plan_alignment = 4096;

struct Buffer {
  std::string name;
  Category category = Category::workspace;
  Tier tier = Tier::host;
  std::int64_t bytes = 0;  ///< of all slots
  Life life = Life::section;
  std::int64_t slots =
      1;  ///< equal parts, of which micro-batches take one after the other; above 1 only where the life is longer than a section
  std::int64_t alignment = plan_alignment;  ///< of its place in the tier

  std::int64_t slot_bytes() const { return bytes / slots; }
};

/// Bytes [offset, offset + bytes) of a buffer, or, of a use in a slot, of the slot (micro-batch + shift) modulo slots. Of no bytes: the
/// task gets a null address.
struct Use {
  int buffer = 0;
  std::int64_t offset = 0, bytes = 0;
  Access access = Access::read;
  bool in_slot = false;
  std::int64_t shift = 0;
};

/// Of `slots` that are taken in turn, the one of a number that may be negative.
constexpr std::int64_t slot_in(std::int64_t slots, std::int64_t number) { return (number % slots + slots) % slots; }

// What a task does. The comment of each op gives the order of its uses.

/// The operands of the pass, then its workspace (write; of no bytes where it needs none).
struct RunPass {
  int pass = 0;  ///< of Schedule::passes
  PassKind kind = PassKind::forward;
};
/// Over the ranks that differ along `axes`: see Communicator for counts and strides.
/// all_gather: whole (write), shard (read). reduce_scatter: shard (write or add), whole (read), workspace (write; of no bytes where sums
/// are made in place). all_reduce: whole (add). all_to_all, rotate: blocks (write), blocks (read).
struct Collective {
  CollectiveKind kind{};
  Axes axes = 0;
  std::int64_t count = 0, stride = 0;
  DType dtype{};
  bool accumulate = false;
  std::int64_t times = 1;                ///< of an all_to_all
  Reduction reduction = Reduction::sum;  ///< of an all_reduce
};
/// From a stage of the pipeline to the next or the one before: data (read) of the one that sends, data (write) of the one that receives.
struct Transfer {
  bool sends = false;
  int peer = 0;  ///< rank of the world
  std::int64_t count = 0;
  DType dtype{};
  std::int64_t ahead = 0;  ///< its micro-batch is that of the section's repetition and so many
  int border = 0;          ///< with virtual stages: between the virtual stage before this number and it
};
/// int64 sums (add), fp32 values (read), scalars (add), the run's values (read; of no bytes where the loss has no scale).
struct AccumulateFixed {
  std::int64_t count = 0;
  std::int64_t limit = 0;  ///< of a sum's magnitude, so that the sum over all that it is added to cannot wrap
};
/// Any number of ranges (write).
struct Zero {};
/// Target (add), source (read): sums of what came down in pieces.
struct Add {
  std::int64_t count = 0;
  DType dtype{};
};
/// Scalars (add), scalars of another tier's tasks (read).
struct JoinSums {};
/// Scalars (add), step inputs (read).
struct CountFlags {};
/// Gradient (read), scalars (add), workspace (write), the run's values (read; of no bytes where the gradient is not scaled).
struct SumSquares {
  std::int64_t count = 0;
  DType dtype{};
};
/// Scalars (write), step inputs (read).
struct BeginStep {};
/// Gradients' scale (write), scalars (read), step inputs (read), the run's values (read).
struct ScaleGradients {};
/// Scalars (read), step inputs (read), update scalars (write), report (write), the run's values (add): the first and the last of no bytes
/// in an evaluation.
struct FinishStep {};
/// Of a piece of a matrix.
struct LinesOf {
  kernels::Lines lines;     ///< without addresses
  LinesBefore before = {};  ///< in the unit
  std::int64_t word = 0;    ///< at which the sums of its lines begin
};
/// What the update's record says, in its order; without the copy where there is none.
struct OptimizerStep {
  UpdateCall update = {};
  std::int64_t sums = 0;  ///< of a tensor, one after the other in the order of the unit's slots
  DType gradient{};
  DType parameters = DType::f32;                   ///< of the copy
  std::int64_t begin = 0;                          ///< element of the unit at which every use of elements begins
  std::vector<Piece> pieces;                       ///< tensors inside, without the padding between them
  std::vector<std::int64_t> tensor_elements = {};  ///< of each piece's whole tensor
  std::vector<LinesOf> lines = {};                 ///< of each piece, where its rows and columns have numbers
  std::vector<UpdateRates> rates;                  ///< of each piece
};
/// Matrices of a unit in bf16 (read, or where results lie in their place add), results (write, or of no bytes), workspace (write). Of each
/// matrix that this rank has to do its orthogonal factor, scaled.
struct Orthogonalize {
  OrthogonalSteps steps{};
  struct Matrix {
    std::int64_t from = 0, to = 0;  ///< elements
    std::int64_t rows = 0, columns = 0;
    float scale = 1;
    std::int64_t parts = 1;  ///< as tensor-parallel ranks have them, part_step elements apart; those of results follow each other
    bool parts_of_columns = false;
  };
  std::int64_t part_step = 0;
  std::vector<Matrix> matrices;
};
/// Target (write), source (read).
struct CopyRuns {
  DType dtype{};
  struct Run {
    std::int64_t to = 0, from = 0, elements = 0;
  };
  std::vector<Run> runs;
};
/// Biases of routers (add), the step's router totals (read), update scalars (read).
struct BalanceRouters {
  /// Layers that follow each other, here and in the model.
  struct Run {
    std::int64_t layer = 0, layers = 0;
    std::int64_t offset = 0;  ///< elements of the biases before the first one's
  };
  std::int64_t experts = 0, stride = 0;  ///< of a layer; elements from a layer's biases to the next one's
  float rate = 0;
  std::vector<Run> runs;
};
/// Values in one type (write), the same in another (read): fp32 into a compute type, or fp32 and fixed-point int64 into bf16 sums.
struct Round {
  std::int64_t count = 0;
  DType from = DType::f32, to = DType::bf16;
};

/// Blocks (write), values of a float type (read).
struct Encode {
  std::int64_t count = 0;
  DType from{};
  kernels::Wire wire{};
};
/// Blocks (write), fp32 values (read), the error that is kept of them (add), the run's values (read).
struct EncodeWithError {
  std::int64_t count = 0;
  kernels::Wire wire{};
  float beta = 0;
  std::int64_t interval = 1;  ///< updates after which the error begins at zero again
  bool first = false;         ///< of the step's gradients: with them it does
  bool scaled = false;        ///< values have the scale of the loss
};
/// Values of a float type (write), blocks (read).
struct Decode {
  std::int64_t count = 0;
  DType to{};
  kernels::Wire wire{};
};
/// fp32 sums (write or add), blocks of each member (read), one after the other.
struct SumBlocks {
  std::int64_t count = 0;  ///< elements of a member
  int members = 1;
  bool accumulate = false;
  kernels::Wire wire{};
};

/// Histories (add), multipliers (write), largest magnitudes (add): see kernels/fp8_history.
struct UpdateFp8Scales {
  std::int64_t matrices = 0, length = 0;
  int margin = 0;
  bool enters = true;  ///< what the step has found
};

/// A block of runs (write), a rank's part of a unit in bf16 (read), multipliers (read), largest magnitudes (add; of no bytes where they are
/// known).
struct EncodeRuns {
  struct Run {
    kernels::Fp8Run run;
    std::int64_t multiplier = 0;  ///< of codes: its number, and that of the magnitude
  };
  std::vector<Run> runs;
};
/// A unit in bf16 (write), the blocks of all parts (read).
struct DecodeRuns {
  std::vector<kernels::Fp8Run> runs;
};
/// Largest magnitudes (write), a rank's part of a unit in bf16 (read).
struct FindMagnitudes {
  std::int64_t count = 0;  ///< of magnitudes
  std::vector<EncodeRuns::Run> runs;
};
/// Largest magnitudes of matrices, which become multipliers of E4M3 (add).
struct ScaleMatrices {
  std::int64_t count = 0;
};

/// Where a unit's tensors lie in blocks of signs, one a rank: words of each, then the scales of all.
struct SignBlocks {
  std::int64_t ranks = 1;
  std::int64_t words = 0;  ///< of a block, scales among them
  struct Tensor {
    std::int64_t offset = 0, elements = 0;  ///< in the unit
    std::int64_t part = 0;                  ///< elements of a rank's part, whole words
    std::int64_t mine = 0;                  ///< of this rank's part those that there are
    std::int64_t mean = 0;                  ///< at which the part begins among those of all tensors
    std::int64_t word = 0, scale = 0;       ///< of a block
  };
  std::vector<Tensor> tensors;
};
/// Blocks (write), what is kept of what signs have taken (add), sums (write), momenta (read; of no bytes where what is kept holds the mean
/// of all ranks' already: then one block, of this rank's parts).
struct PackSigns {
  SignBlocks blocks;
  bool of_mean = false;
};
/// What is kept (add), blocks of each rank (read): the mean of this rank's parts joins it.
struct SumSigns {
  SignBlocks blocks;
};
/// Momenta (write), blocks of each rank's parts (read).
struct UnpackSigns {
  SignBlocks blocks;
};

/// Packed copy (write), weight (read); of delayed scaling its multiplier (read) and its largest magnitude (add), else of no bytes.
struct PackWeight {
  kernels::Gemm product;  ///< that will read the copy
};

/// Target (write), source (read): the same bytes in another tier.
struct Copy {};
/// Target in memory (write) and source on disk (read), any number of times; and the other way round.
struct ReadDisk {};
struct WriteDisk {};

using Op = std::variant<RunPass, Collective, AccumulateFixed, Zero, CountFlags, SumSquares, BeginStep, ScaleGradients, FinishStep,
                        OptimizerStep, Round, PackWeight, Copy, Add, JoinSums, ReadDisk, WriteDisk, Transfer, BalanceRouters, Encode,
                        EncodeWithError, Decode, SumBlocks, Orthogonalize, CopyRuns, UpdateFp8Scales, EncodeRuns, DecodeRuns,
                        FindMagnitudes, ScaleMatrices, PackSigns, SumSigns, UnpackSigns>;

struct Task {
  std::string name;  ///< "gather layers.12 (backward)"
  Op op;
  Lane lane = Lane::compute;
  std::vector<Use> uses;
  double flops = 0;
  double bytes_moved = 0;  ///< by a collective or a copy between tiers, per rank
};

/// A run of tasks that is built once, however often it repeats.
struct Section {
  std::string name;
  std::vector<Task> tasks;
};

/// Sections in order, each with its number of repetitions: "prologue, first, middle x 6, last, epilogue".
struct Program {
  struct Phase {
    int section = 0;
    std::int64_t repeat = 1;
    std::optional<std::int64_t> micro =
        {};  ///< the micro-batch of the first repetition; each later one's is the next; none: no micro-batch
  };
  std::vector<Phase> phases;  ///< none: a schedule has no such program
};

enum class ProgramKind : std::uint8_t {
  train,     ///< one optimizer step; where updates are late, with the update that the step before has left
  evaluate,  ///< forward passes over validation micro-batches
  publish,   ///< makes the compute copies from the master weights: after initialisation and loading
  prompt,    ///< of a text: fills its caches, and says what follows
  token,     ///< of a text: one token joins it
  first,     ///< where updates are late: a step that finds none
  update,    ///< where updates are late: the one that a step has left
  saving     ///< where saves go on beside steps: a step that copies the state they write before it changes it
};
struct ProgramRow {
  ProgramKind kind;
  const char* name;
  bool often;  ///< runs so often that a graph of it pays
};
/// A row a program, in the order of the enum. Plans, executors and digests have as many programs as this has rows.
inline constexpr ProgramRow program_rows[] = {
    {ProgramKind::train, "train", true},      {ProgramKind::evaluate, "evaluate", true},
    {ProgramKind::publish, "publish", false}, {ProgramKind::prompt, "prompt", false},
    {ProgramKind::token, "token", true},      {ProgramKind::first, "first step", false},
    {ProgramKind::update, "update", false},   {ProgramKind::saving, "step with copies for a save", false},
};
inline constexpr int program_count = static_cast<int>(std::size(program_rows));
constexpr const ProgramRow& row_of(ProgramKind kind) { return program_rows[static_cast<std::size_t>(kind)]; }
inline const char* name_of(ProgramKind kind) { return row_of(kind).name; }
static_assert([] {
  for (int i = 0; i < program_count; ++i)
    if (program_rows[i].kind != static_cast<ProgramKind>(i)) return false;
  return true;
}());

/// What a run carries from step to step beside the state of its parameters: the same on all ranks, initialised, saved and loaded by name.
struct RunValue {
  std::string name;  ///< "loss_scale"; in a checkpoint /run/NAME
  DType type{};      ///< f32 or i64
  double initial = 0;
  Use use;
  std::int64_t count = 0;  ///< of a list of f32; 0: a number
  bool is_list() const { return count > 0; }
};

/// A unit's part of a group of optimizer state on this rank: what is initialised, saved and loaded, one number an element (in checkpoints
/// fp32, whatever it is in memory).
struct Held {
  std::string group;  ///< of state_groups
  int unit = 0;
  Range elements;  ///< of the unit
  Use use;
  /// Of what is frozen the compute type.
  kernels::StateType type = kernels::StateType::f32;
  /// Else `elements` counts the rows or columns of the unit's tensors, all of them, which each owner has.
  kernels::Extent of = kernels::Extent::element;
  /// Else each rank has numbers of its own, [0, elements), of no tensor: they mean something to as many ranks alone. Not all phases have
  /// them.
  bool own = false;

  std::int64_t bytes(std::int64_t count) const { return kernels::state_bytes(type, count); }
};

/// What of it this one of the unit's owners saves.
Range saved_part(const Layout& layout, const Held& held, const Group& owners);

struct Schedule {
  std::vector<Buffer> buffers;
  std::vector<Held> state;  ///< unit by unit; a unit's master weights first; then, unit by unit, what each rank has of its own
  std::vector<RunValue> values;
  std::vector<Held> copies;  ///< where saves go on beside steps: what of the state this rank saves, as the program saving leaves it
  std::vector<Section> sections;
  std::array<Program, program_count> programs;  ///< by kind
  std::vector<Segment> segments;                ///< as training and evaluation read them, then as a prompt does and a token
  std::vector<SegmentPass> passes;              ///< readings of them
  ModelShape shape;

  /// What all ranks of a role must agree on: buffers, sections, tasks, lanes, collectives and their sizes; not which shard a rank owns.
  std::vector<std::string> lines() const;
  /// Their digest.
  Hash128 hash() const;
  /// The collectives in which ranks meet that differ along this axis, perhaps among others, in order: what such ranks must agree on,
  /// whatever their roles.
  std::vector<std::string> collectives_along(Axis axis) const;
  const Program& program(ProgramKind kind) const { return programs[static_cast<std::size_t>(kind)]; }
  Program& program(ProgramKind kind) { return programs[static_cast<std::size_t>(kind)]; }
  bool has(ProgramKind kind) const { return !program(kind).phases.empty(); }
  /// Whether a step leaves its update to the next, which makes each unit's before that unit's first use.
  bool updates_late() const { return has(ProgramKind::update); }
  int find_buffer(const std::string& name) const;  ///< -1 where there is none
};

/// The tasks of a program as text, one a line: number, lane, name, reads and writes.
std::string print_schedule(const Schedule& schedule);

}  // namespace tessera
