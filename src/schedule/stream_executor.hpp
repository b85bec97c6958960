// Runs a program on a GPU: lanes are streams, waits are events. The host issues tasks in the order of the list and runs ahead.
#pragma once
#include <memory>

#include "kernels/cuda/streams.hpp"
#include "schedule/executor.hpp"

namespace tessera {

class StreamExecutor final : public Executor {
 public:
  /// `streams` has one stream a lane, which the table's tasks work on.
  StreamExecutor(TaskTable table, std::unique_ptr<cuda::Streams> streams) : table_(std::move(table)), streams_(std::move(streams)) {}

  /// Issues a program and waits until the device has done it.
  void run(ProgramKind kind) override;
  void warm_up(ProgramKind kind) override;
  /// Seconds that the host took to issue tasks.
  const LaneTimes& times() const override { return times_; }

 private:
  void issue(const OrderedPhase& phase, std::int64_t repetition);

  TaskTable table_;
  std::unique_ptr<cuda::Streams> streams_;
  LaneTimes times_;
  std::array<std::int64_t, lane_count> issued_{};  ///< tasks of this run, by lane
  std::array<std::int64_t, lane_count> start_{};   ///< of them before this repetition of the section
};

}  // namespace tessera
