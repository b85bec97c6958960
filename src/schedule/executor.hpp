// Runs a program: lanes in order, waits between them. It knows no word of models, ZeRO or ranks.
#pragma once
#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <thread>

#include "schedule/order.hpp"

namespace tessera {

/// What a task's code gets: the address of each use.
struct TaskRun {
  const Task& task;
  std::span<void* const> at;
};
using TaskFunction = std::function<void(const TaskRun&)>;

enum class LaneMode : std::uint8_t {
  inline_order,  ///< one thread runs all tasks in the order of the list, which satisfies every wait
  threads        ///< the compute lane on the calling thread, a thread for each other lane
};

/// Seconds spent in tasks and in waits, by lane.
struct LaneTimes {
  std::array<double, lane_count> busy{}, waited{};
};

class Executor {
 public:
  /// `bases[tier]` is where each arena begins. Addresses of all uses are worked out here; running allocates nothing.
  Executor(const Schedule& schedule, const MemoryPlan& plan, std::array<std::byte*, tier_count> bases, LaneMode mode, TaskFunction run);
  ~Executor();
  Executor(const Executor&) = delete;

  /// Runs a program to its end. The first error of any lane is thrown after all lanes have stopped.
  void run(ProgramKind kind);
  /// Of the last run.
  const LaneTimes& times() const { return times_; }

 private:
  struct Addresses {
    std::vector<void*> base;  ///< of each use, micro-batch 0
    std::vector<std::int64_t> stride;
  };
  void run_inline(const OrderedProgram& program);
  void run_lane(const OrderedProgram& program, std::size_t lane);
  void run_task(int section, int task, std::int64_t micro);
  bool wait_for(std::size_t lane, const Waits& waits, const std::array<std::int64_t, lane_count>& start);
  void worker(std::size_t lane);
  void fail_with(std::exception_ptr error);

  const Schedule& schedule_;
  LaneMode mode_;
  TaskFunction run_;
  std::array<OrderedProgram, 3> programs_;
  std::vector<std::vector<Addresses>> addresses_;  ///< [section][task]
  LaneTimes times_;

  std::array<std::atomic<std::int64_t>, lane_count> done_{};
  std::atomic<bool> failed_{false};
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_, finished_;
  std::exception_ptr error_;
  const OrderedProgram* running_ = nullptr;
  std::int64_t generation_ = 0;
  int active_ = 0;
  bool stopping_ = false;
};

}  // namespace tessera
