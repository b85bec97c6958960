#ifdef TESSERA_CUDA
#include "schedule/stream_executor.hpp"

#include "base/clock.hpp"

namespace tessera {

void StreamExecutor::run(ProgramKind kind) {
  times_ = {};
  issued_ = start_ = {};
  streams_->fork();
  for (const OrderedPhase& phase : table_.program(kind))
    for (std::int64_t repetition = 0; repetition < phase.repeat; ++repetition) issue(phase, repetition);
  streams_->join();
  streams_->synchronize();
}

void StreamExecutor::warm_up(ProgramKind kind) {
  for (const OrderedPhase& phase : table_.program(kind)) {
    const auto& tasks = table_.tasks(phase.section);
    for (std::size_t i = 0; i < tasks.size(); ++i)
      if (tasks[i].lane == Lane::compute) table_.run(phase.section, static_cast<int>(i), phase.micro_begin);
  }
  streams_->join();
  streams_->synchronize();
}

void StreamExecutor::issue(const OrderedPhase& phase, std::int64_t repetition) {
  const auto& tasks = table_.tasks(phase.section);
  const auto& waits = repetition == 0 ? phase.first : phase.steady;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const auto lane = static_cast<std::size_t>(tasks[i].lane);
    const double begin = now_seconds();
    for (std::size_t other = 0; other < lane_count; ++other)
      // The list's order satisfies every wait, so what is waited for has been issued.
      if (other != lane && waits[i][other] && start_[other] + *waits[i][other] > 0)
        streams_->wait(lane, other, start_[other] + *waits[i][other]);
    table_.run(phase.section, static_cast<int>(i), phase.micro_begin + repetition);
    streams_->record(lane, ++issued_[lane]);
    times_.busy[lane] += now_seconds() - begin;
  }
  for (std::size_t l = 0; l < lane_count; ++l) start_[l] += phase.tasks[l];
}

}  // namespace tessera

#endif
