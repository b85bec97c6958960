// A step is a list of named tasks on lanes, with the buffers that each reads and writes. Everything else reads this list.
#pragma once
#include <array>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.hpp"
#include "memory/arena.hpp"
#include "model/record/passes.hpp"
#include "optimizer/groups.hpp"
#include "schedule/ops.hpp"
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
  bool collective;  ///< its tasks wait for other ranks; timelines count them as communication
  bool on_host;     ///< its tasks are host code, even in a GPU run
};
/// One row for each lane, in the order of the enum. The number of lanes everywhere is the number of these rows.
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
/// Whether a lane's collectives move weights or gradients: on a GPU they take few multiprocessors, and products beside them leave those.
constexpr bool travels_beside_products(Lane lane) { return lane == Lane::gather || lane == Lane::reduce; }
static_assert([] {
  for (int i = 0; i < lane_count; ++i)
    if (lanes[i].lane != static_cast<Lane>(i)) return false;
  return true;
}());

/// The rows of the memory table.
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

/// How long a buffer owns its bytes. At other times another buffer may use them.
enum class Life : std::uint8_t {
  section,  ///< in each section, from first to last use
  program,  ///< in each program, from first to last use; a section that repeats counts whole
  run       ///< always
};

/// Buffers begin on a page; on a disk, on a block of its engine.
inline constexpr std::int64_t plan_alignment = 4096;

struct Buffer {
  std::string name;
  Category category = Category::workspace;
  Tier tier = Tier::host;
  std::int64_t bytes = 0;  ///< of all slots together
  Life life = Life::section;
  std::int64_t slots = 1;  ///< equal parts that micro-batches use in rotation; above 1 only if the life is longer than a section
  std::int64_t alignment = plan_alignment;  ///< of its place in the tier

  std::int64_t slot_bytes() const { return bytes / slots; }
};

/// Bytes [offset, offset + bytes) of a buffer. If `in_slot`, they are relative to slot (micro-batch + shift) modulo slots. A use of 0 bytes
/// gives the task a null address.
struct Use {
  int buffer = 0;
  std::int64_t offset = 0, bytes = 0;
  Access access = Access::read;
  bool in_slot = false;
  std::int64_t shift = 0;
};

/// The slot of a micro-batch number, which may be negative.
constexpr std::int64_t slot_in(std::int64_t slots, std::int64_t number) { return (number % slots + slots) % slots; }

struct Task {
  std::string name;  ///< "gather layers.12 (backward)"
  Op op;
  Lane lane = Lane::compute;
  std::vector<Use> uses;
  double flops = 0;
  double bytes_moved = 0;  ///< by a collective or a copy between tiers, per rank
};

/// Tasks that are built once and may repeat.
struct Section {
  std::string name;
  std::vector<Task> tasks;
};

/// Sections in order, each with its number of repetitions: "prologue, first, middle x 6, last, epilogue".
struct Program {
  struct Phase {
    int section = 0;
    std::int64_t repeat = 1;
    std::optional<std::int64_t> micro = {};  ///< micro-batch of the first repetition; later ones follow; none: no micro-batch
  };
  std::vector<Phase> phases;  ///< empty: the schedule does not have this program
};

enum class ProgramKind : std::uint8_t {
  train,     ///< one optimizer step; with late updates, it starts with the update of the step before
  evaluate,  ///< forward passes over validation micro-batches
  publish,   ///< makes compute copies from master weights, after initialisation and loading
  prompt,    ///< generation: fills the caches and gives the next token's logits
  token,     ///< generation: adds one token
  first,     ///< with late updates: a step without an update before it
  update,    ///< with late updates: the pending update alone
  saving     ///< with asynchronous saves: a step that copies the state before it changes it
};
struct ProgramRow {
  ProgramKind kind;
  const char* name;
  bool often;  ///< repeats often enough for a CUDA graph
};
/// One row for each program, in the order of the enum. The number of programs everywhere is the number of these rows.
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

/// A value that a run carries between steps beside the optimizer state. It is equal on all ranks, and initialised, saved and loaded by
/// name.
struct RunValue {
  std::string name;  ///< "loss_scale"; in a checkpoint /run/NAME
  DType type{};      ///< f32 or i64
  double initial = 0;
  Use use;
  std::int64_t count = 0;  ///< length of a list of f32; 0: a single number
  bool is_list() const { return count > 0; }
};

/// This rank's part of a unit in one group of optimizer state. It is initialised, saved and loaded with one number for each element.
/// Checkpoints hold fp32, whatever the type in memory.
struct Held {
  std::string group;  ///< one of state_groups
  int unit = 0;
  Range elements;  ///< elements of the unit
  Use use;
  /// Type in memory; for frozen tensors the compute type.
  kernels::StateType type = kernels::StateType::f32;
  /// If not `element`, `elements` counts all rows or columns of the unit's tensors, and each owner has all of them.
  kernels::Extent of = kernels::Extent::element;
  /// If true, each rank has its own numbers [0, elements), which belong to no tensor. They are valid only for the same number of ranks, and
  /// not all phases have them.
  bool own = false;

  std::int64_t bytes(std::int64_t count) const { return kernels::state_bytes(type, count); }
};

/// The part of it that this owner of the unit saves.
Range saved_part(const Layout& layout, const Held& held, const Group& owners);

/// Segments that follow each other, with parameters under a prefix of their own: the model as it trains and is evaluated, the model as it
/// makes a text, and those that run beside them (model/towers).
struct Tower {
  std::string name;    ///< "model"
  std::string prefix;  ///< of what is its own: sums of a step, boundaries of a stage, and as a rule tensors; empty: the model's
  std::vector<Segment> segments;
  int streams = 0;  ///< of the towers before: streams have one number over all

  bool trains_nothing() const { return !prefix.empty(); }
  const Segment& at(SegmentNumber number) const { return segments[static_cast<std::size_t>(number.segment)]; }
};

struct Schedule {
  std::vector<Buffer> buffers;
  std::vector<Held> state;  ///< unit by unit, master weights first; then, unit by unit, each rank's own numbers
  std::vector<RunValue> values;
  std::vector<Held> copies;  ///< with asynchronous saves: the state that this rank saves, as the program `saving` copies it
  std::vector<Section> sections;
  std::array<Program, program_count> programs;  ///< by kind
  std::vector<Tower> towers;                    ///< the model's first
  std::vector<SegmentPass> passes;              ///< one task each
  ModelShape shape;
  /// Multiprocessors of a GPU that a gather or a reduction may take, and that products beside it leave; 0: on the host.
  int collective_blocks = 0;

  /// What all ranks of a role must have in common: buffers, sections, tasks, lanes, collectives and their sizes. Shard ownership is left
  /// out.
  std::vector<std::string> lines() const;
  /// Digest of lines().
  Hash128 hash() const;
  /// The collectives between ranks that differ along this axis (and perhaps others), in order. Such ranks must agree on them in any role.
  std::vector<std::string> collectives_along(Axis axis) const;
  const Program& program(ProgramKind kind) const { return programs[static_cast<std::size_t>(kind)]; }
  Program& program(ProgramKind kind) { return programs[static_cast<std::size_t>(kind)]; }
  const Segment& segment_of(const SegmentPass& pass) const { return towers[static_cast<std::size_t>(pass.segment.tower)].at(pass.segment); }
  bool has(ProgramKind kind) const { return !program(kind).phases.empty(); }
  /// Whether the next step runs this step's update, each unit before its first use.
  bool updates_late() const { return has(ProgramKind::update); }
  int find_buffer(const std::string& name) const;  ///< -1 if there is none
};

/// The tasks of all programs as text, one a line: number, lane, name, reads and writes.
std::string print_schedule(const Schedule& schedule);

}  // namespace tessera
