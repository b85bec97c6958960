// A program played through with known times of its tasks: when each begins and ends, what compute waits for, what the step's length rests
// on. A pure function; its waits are those that executors wait for.
#pragma once
#include "schedule/plan/order.hpp"
#include "schedule/run/timeline.hpp"
#include "schedule/simulate/task_seconds.hpp"

namespace tessera {

/// Seconds of each task, by section and task.
using TaskSeconds = std::vector<std::vector<double>>;

/// What compute waits for: other ranks, copies between memories, disks, or the host's cores. Of a task, whatever its lane: reads and writes
/// that are not pipelined run on the host's lane.
enum class WaitKind : std::uint8_t { communication, transfer, disk, host };
inline constexpr const char* wait_kinds[] = {"communication", "transfer", "disk", "host"};
inline constexpr std::size_t wait_kind_count = std::size(wait_kinds);
WaitKind wait_kind(const Task& task);

struct SimulationOptions {
  bool lanes_side_by_side = true;     ///< else one thread runs all tasks in the order of the list
  bool timeline = false;              ///< every task's begin and end is kept
  double contention = 0;              ///< share of its rate that compute loses while a collective runs beside it
  const Contention* parts = nullptr;  ///< of tasks whose parts lose different shares
  /// Of a section that repeats more often, so many repetitions are played, and one in their middle counts for the others.
  std::int64_t most_repetitions = 256;
};

/// Tasks of one kind on the critical path: their names, with the numbers of layers as "*".
struct CriticalTasks {
  std::string name;
  Lane lane = Lane::compute;
  std::int64_t count = 0;
  double seconds = 0;
};

struct Simulation {
  double seconds = 0;
  std::array<std::int64_t, lane_count> tasks{};
  std::array<double, lane_count> busy{};  ///< seconds of work: of a disk's tasks without those in which another's had it
  /// Seconds in which compute waited and a task of this lane was what it waited for. Compute's busy time and these make up the whole.
  std::array<double, lane_count> exposed{};
  std::array<double, wait_kind_count> waited{};  ///< the same seconds by kind
  double contended = 0;                          ///< of compute's seconds: lost to collectives beside it
  std::vector<CriticalTasks> critical;           ///< what the length rests on, longest first; their seconds make up the whole
  Timeline timeline;                             ///< where asked for; without repetitions that were not played
  std::int64_t left_out = 0;                     ///< repetitions of sections that were not played

  double share(double part) const { return seconds > 0 ? part / seconds : 0; }
};

Simulation simulate(const Schedule& schedule, const OrderedProgram& program, const TaskSeconds& seconds,
                    const SimulationOptions& options = {});

}  // namespace tessera
