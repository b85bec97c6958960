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
