// Runs a program: lanes in order, waits between them. An executor knows no word of models, ZeRO or ranks.
#pragma once
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "deck/modes.hpp"
#include "schedule/run/timeline.hpp"
#include "topology/failure/whereabouts.hpp"

namespace tessera {

enum class LaneMode : std::uint8_t {
  inline_order,  ///< one thread runs all tasks in the order of the list, which satisfies every wait
  threads        ///< the compute lane on the calling thread, a thread for each other lane
};

/// Seconds spent in tasks and in waits, by lane.
struct LaneTimes {
  std::array<double, lane_count> busy{}, waited{};
};

/// What each lane is at, for another thread. Tasks must outlive it.
class LanePositions {
 public:
  void enter(std::size_t lane, const Task& task, double now) {
    since_[lane].store(now, std::memory_order_relaxed);
    tasks_[lane].store(&task, std::memory_order_release);
  }
  void leave(std::size_t lane, double now) {
    since_[lane].store(now, std::memory_order_relaxed);
    tasks_[lane].store(nullptr, std::memory_order_release);
  }
  /// `name`: of the program that runs, empty between two. Stays where it is.
  void turn_to(const char* name) { program_.store(name, std::memory_order_release); }
  const char* program() const { return program_.load(std::memory_order_acquire); }
  /// Of lanes that are at a task.
  std::vector<TaskAt> tasks() const;
  /// now_seconds() when a task began or ended last.
  double moved() const;

 private:
  std::array<std::atomic<const Task*>, lane_count> tasks_{};
  std::array<std::atomic<double>, lane_count> since_{};
  std::atomic<const char*> program_{""};
};

/// That a program runs, until it is destroyed.
class RunningProgram {
 public:
  RunningProgram(LanePositions& positions, ProgramKind kind) : positions_(positions) { positions_.turn_to(row_of(kind).name); }
  ~RunningProgram() { positions_.turn_to(""); }
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;

 private:
  LanePositions& positions_;
};

/// How an executor looks after tasks that wait for other ranks: a lost lane's peers may never come to what the other lanes wait for.
struct LaneWatch {
  /// Asked on streams, whose tasks return before they are done, after `waited` seconds in which no task has ended; throws to give up. Calls
  /// that block ask for themselves.
  std::function<void(double waited)> check = [](double) {};
  /// Ends what is under way on any lane, undone: called once, when a lane has failed.
  std::function<void()> abort = [] {};
  /// Seconds without an end after which a task on a stream is named in the log, and again. A graph has at least `patience` times as long as
  /// any run of its program took: it is one task there.
  double say_after = 30;
  double patience = 10;
};

class Executor {
 public:
  virtual ~Executor() = default;
  /// Runs a program to its end. The first error of any lane is thrown after all lanes have stopped.
  virtual void run(ProgramKind kind) = 0;
  /// The same, and notes when each task began and ended; other runs pay nothing for it. The timeline refers to the schedule's tasks.
  virtual Timeline run_traced(ProgramKind kind) = 0;
  /// Runs each compute task of a program once, in the order of the list and without regard to results: what a backend does when it meets a
  /// task for the first time (loading code, choosing algorithms) is done before the first step. Leaves garbage in memory.
  virtual void warm_up(ProgramKind) {}
  /// Of the last run.
  virtual const LaneTimes& times() const = 0;
  /// What the lanes are at in this moment; any thread may ask.
  const LanePositions& under_way() const { return positions_; }

 protected:
  LanePositions positions_;
};

/// On host threads.
class HostExecutor final : public Executor {
 public:
  HostExecutor(TaskTable table, LaneMode mode, LaneWatch watch = {});
  ~HostExecutor() override;
  HostExecutor(const HostExecutor&) = delete;

  void run(ProgramKind kind) override;
  Timeline run_traced(ProgramKind kind) override;
  const LaneTimes& times() const override { return times_; }

 private:
  void execute(ProgramKind kind);
  void run_task(const OrderedPhase& phase, int task, std::int64_t repetition);
  void run_inline(const OrderedProgram& program);
  void run_lane(const OrderedProgram& program, std::size_t lane);
  bool wait_for(std::size_t lane, const Waits& waits, const std::array<std::int64_t, lane_count>& start);
  void worker(std::size_t lane);
  void fail_with(std::exception_ptr error);

  TaskTable table_;
  LaneMode mode_;
  LaneWatch watch_;
  LaneTimes times_;
  std::optional<Timeline> timeline_;  ///< of the run under way, where it is traced

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
