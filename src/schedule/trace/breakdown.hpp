// Where the seconds of a step go, by what is done in them: of each part those in which nothing of compute ran beside it, and those that
// compute hid.
#pragma once
#include "schedule/run/timeline.hpp"
#include "topology/mesh.hpp"

namespace tessera {

/// A row of time_parts.
enum class TimePart : std::uint8_t {
  forward,
  backward,
  head,
  optimizer,
  other,
  all_gather,
  reduce_scatter,
  all_reduce,
  all_to_all,
  rotate,
  pipeline,
  upload,
  download,
  disk_read,
  disk_write,
  snapshot
};
struct TimePartRow {
  TimePart part;
  const char* name;
  bool moves;  ///< bytes
  const char* help;
};
/// In the order of the enum: of two parts that stand alone in the same instant it is the first one's.
inline constexpr TimePartRow time_parts[] = {
    {TimePart::forward, "forward", false, "forward passes, without the head"},
    {TimePart::backward, "backward", false, "backward passes, with recomputation for them"},
    {TimePart::head, "head", false, "the last norm, logits and loss, both ways"},
    {TimePart::optimizer, "optimizer", false, "updates, Newton-Schulz steps, biases of routers"},
    {TimePart::other, "other", false, "sums, norms, roundings, packed copies, encoding"},
    {TimePart::all_gather, "all_gather", true, "gathers of parameters, and of tokens over mesh.tp"},
    {TimePart::reduce_scatter, "reduce_scatter", true, "gradients sent to their owners"},
    {TimePart::all_reduce, "all_reduce", true, "sums for all ranks"},
    {TimePart::all_to_all, "all_to_all", true, "tokens of experts, heads of context ranks, blocks of gradients"},
    {TimePart::rotate, "rotate", true, "keys and values around the ring of mesh.cp"},
    {TimePart::pipeline, "pipeline", true, "streams between stages, and the wait for them: bubbles"},
    {TimePart::upload, "upload", true, "from the host to the kernels' memory"},
    {TimePart::download, "download", true, "the other way"},
    {TimePart::disk_read, "disk_read", true, "from disks of the node"},
    {TimePart::disk_write, "disk_write", true, "to them"},
    {TimePart::snapshot, "snapshot", true, "copies for an asynchronous save"},
};
inline constexpr std::size_t time_part_count = std::size(time_parts);
static_assert([] {
  for (std::size_t i = 0; i < time_part_count; ++i)
    if (time_parts[i].part != static_cast<TimePart>(i)) return false;
  return true;
}());

/// What a task of this schedule is a part of.
TimePart part_of(const Task& task, const Schedule& schedule);

struct PartSeconds {
  double exposed = 0;      ///< of compute's parts all; of others those in which compute did nothing
  double hidden = 0;       ///< while compute, or a part that counts first, was at work
  double bytes_moved = 0;  ///< by this rank's tasks: what a link carries, so that over the seconds it is the bus bandwidth of nccl-tests
  double bytes_whole = 0;  ///< of the tensors that collectives are of; over the seconds their algorithm bandwidth
  std::int64_t tasks = 0;
};
/// The exposed seconds of all parts and `idle` are together `seconds`.
struct Breakdown {
  double seconds = 0, idle = 0;
  std::array<PartSeconds, time_part_count> parts = {};

  void add(const Breakdown& other);
  const PartSeconds& of(TimePart part) const { return parts[static_cast<std::size_t>(part)]; }
};
/// `mesh`: whose axes the schedule's collectives go along.
Breakdown break_down(const Timeline& timeline, const Schedule& schedule, const Mesh& mesh);

/// Lines for people, each after a line break: the parts that took time, as means of so many steps, which took `seconds` each with what lies
/// outside the schedule, `data` of them for the reading of batches.
std::string print_breakdown(const Breakdown& sum, double steps, double seconds, double data);

}  // namespace tessera
