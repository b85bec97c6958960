// Runs a program on a GPU: lanes are streams, waits are events. The host issues tasks in the order of the list and runs ahead, as far as
// the streams keep events, so that what a lane is at can always be named. Tasks of lanes on the
// host are functions that their streams call. From its second run on a program is a CUDA graph: one launch.
#pragma once
#include <deque>
#include <memory>
#include <mutex>

#include "kernels/cuda/stopwatch.hpp"
#include "schedule/run/executor.hpp"

namespace tessera {

class StreamExecutor final : public Executor {
 public:
  /// `streams` has one stream a lane, which the table's tasks work on.
  StreamExecutor(TaskTable table, std::unique_ptr<cuda::Streams> streams, GraphMode graphs, LaneWatch watch = {});
  /// Waits for host code that is under way.
  ~StreamExecutor() override { streams_.reset(); }

  /// Issues a program and waits until the device has done it.
  void run(ProgramKind kind) override;
  /// Issues tasks one by one, whether or not the program has become a graph, whose insides cannot be timed.
  Timeline run_traced(ProgramKind kind) override;
  void warm_up(ProgramKind kind) override;
  /// Seconds that the host took to issue tasks.
  const LaneTimes& times() const override { return times_; }

 private:
  /// A task of a lane on the host, to be called when its stream comes to it.
  struct HostCall {
    StreamExecutor* executor;
    int section, task;
    std::int64_t micro;
    cuda::HostCall call = {};
  };
  /// What is known of a program beside its tasks.
  struct Recorded {
    bool ran = false;                                        ///< once, task by task: what CUDA, cuBLASLt and NCCL do at first use is done
    double seconds = 0;                                      ///< that the longest run took
    std::unique_ptr<cuda::Graph> graph;                      ///< of the whole program
    Task whole;                                              ///< stands for it in messages
    std::array<std::vector<const Task*>, lane_count> tasks;  ///< of all lanes but compute, in the graph's order
    std::deque<HostCall> host_calls;                         ///< that the graph makes
  };

  /// Of a run that is traced.
  struct Trace {
    Timeline timeline;
    cuda::Stopwatch stopwatch;
  };

  void execute(ProgramKind kind);
  bool wants_graph(ProgramKind kind) const;
  /// False where CUDA refuses and the deck leaves the choice to us.
  bool capture(ProgramKind kind);
  void run_tasks(ProgramKind kind);
  void run_graph(const Recorded& program);
  /// Seconds without an end after which what is under way is named in the log.
  double say_after() const;
  /// In the place of a collective of integers, which tell kernels where rows are: as if no rank had sent any row.
  void bring_nothing(const OrderedPhase& phase, int task);
  void issue_all(ProgramKind kind);
  void issue(const OrderedPhase& phase, std::int64_t repetition);
  void run_task(const OrderedPhase& phase, int task, std::int64_t repetition);
  /// Calls the task's code, now or, on the host, when its stream comes to it.
  void call(const OrderedPhase& phase, int task, std::int64_t repetition);
  static void call_on_host(void* host_call) noexcept;
  /// Throws what a task on the host threw.
  void throw_host_error();
  void record(std::size_t lane, const Task& task);
  /// Until the device has done the lane's `count`-th task.
  void await(std::size_t lane, std::int64_t count);
  bool see_progress();
  void note_positions(double since);
  /// Ends what will never end by itself.
  void end_all();
  std::string unfinished() const;

  TaskTable table_;
  std::unique_ptr<cuda::Streams> streams_;
  GraphMode graphs_;
  LaneWatch watch_;
  std::array<Recorded, program_count> programs_;
  Recorded* capturing_ = nullptr;      ///< what is being captured
  const Recorded* running_ = nullptr;  ///< whose graph is under way
  std::int64_t marks_ = 0;             ///< of it, as seen last
  std::optional<Trace> trace_;         ///< of the run under way, where it is traced
  LaneTimes times_;
  std::deque<HostCall> host_calls_;  ///< of the run under way, where it is no graph
  std::mutex host_mutex_;
  std::exception_ptr host_error_;  ///< the first
  std::atomic<bool> host_failed_{false};
  std::array<std::int64_t, lane_count> issued_{};                  ///< tasks of this run, by lane
  std::array<std::int64_t, lane_count> done_{};                    ///< of them that are known to be done
  std::array<std::int64_t, lane_count> start_{};                   ///< of them before this repetition of the section
  std::array<std::vector<const Task*>, lane_count> issued_tasks_;  ///< the last ones, by number modulo the ring of events
};

}  // namespace tessera
