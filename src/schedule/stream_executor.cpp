#ifdef TESSERA_CUDA
#include "schedule/stream_executor.hpp"

#include <sched.h>
#include <unistd.h>

#include "base/clock.hpp"
#include "kernels/cuda/devices.hpp"

namespace tessera {
namespace {
constexpr std::int64_t ring = cuda::Streams::ring;
constexpr double check_seconds = 0.05;
}  // namespace

StreamExecutor::StreamExecutor(TaskTable table, std::unique_ptr<cuda::Streams> streams, StreamWatch watch)
    : table_(std::move(table)), streams_(std::move(streams)), watch_(std::move(watch)) {
  for (auto& tasks : issued_tasks_) tasks.resize(cuda::Streams::ring);
}

void StreamExecutor::run(ProgramKind kind) {
  times_ = {};
  issued_ = done_ = start_ = {};
  try {
    streams_->fork();
    for (const OrderedPhase& phase : table_.program(kind))
      for (std::int64_t repetition = 0; repetition < phase.repeat; ++repetition) issue(phase, repetition);
    streams_->join();
    for (std::size_t lane = 0; lane < lane_count; ++lane) await(lane, issued_[lane]);
  } catch (...) {
    watch_.abort();  // or freeing memory on the way out would wait for the device for ever
    throw;
  }
}

void StreamExecutor::warm_up(ProgramKind kind) {
  for (const OrderedPhase& phase : table_.program(kind)) {
    const auto& tasks = table_.tasks(phase.section);
    for (std::size_t i = 0; i < tasks.size(); ++i)
      if (tasks[i].lane == Lane::compute) table_.run(phase.section, static_cast<int>(i), phase.micro_begin);
  }
  cuda::synchronize();
}

void StreamExecutor::issue(const OrderedPhase& phase, std::int64_t repetition) {
  const auto& tasks = table_.tasks(phase.section);
  const auto& waits = repetition == 0 ? phase.first : phase.steady;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const auto lane = static_cast<std::size_t>(tasks[i].lane);
    const double begin = now_seconds();
    for (std::size_t other = 0; other < lane_count; ++other)
      // The list's order satisfies every wait, so what is waited for has been issued.
      if (other != lane && waits[i][other] && start_[other] + *waits[i][other] > done_[other])
        streams_->wait(lane, other, start_[other] + *waits[i][other]);
    table_.run(phase.section, static_cast<int>(i), phase.micro_begin + repetition);
    record(lane, tasks[i]);
    times_.busy[lane] += now_seconds() - begin;
  }
  for (std::size_t l = 0; l < lane_count; ++l) start_[l] += phase.tasks[l];
}

void StreamExecutor::record(std::size_t lane, const Task& task) {
  const std::int64_t number = issued_[lane] + 1;
  await(lane, number - ring);
  issued_tasks_[lane][static_cast<std::size_t>(number % ring)] = &task;
  streams_->record(lane, number);
  issued_[lane] = number;
}

void StreamExecutor::await(std::size_t lane, std::int64_t count) {
  double begin = now_seconds(), checked = begin;
  while (done_[lane] < count) {
    if (see_progress()) {
      begin = now_seconds();
      continue;
    }
    const double now = now_seconds();
    if (now - checked > check_seconds) {
      checked = now;
      try {
        watch_.check(now - begin);
      } catch (const Error& error) {
        throw Error(error.code, fmt::format("{} ({})", error.what(), unfinished()));
      }
    }
    now - begin < 2e-3 ? sched_yield() : usleep(20);
  }
}

/// Whether a task has ended since the last call.
bool StreamExecutor::see_progress() {
  bool moved = false;
  for (std::size_t lane = 0; lane < lane_count; ++lane)
    for (; done_[lane] < issued_[lane] && streams_->done(lane, done_[lane] + 1); moved = true) ++done_[lane];
  return moved;
}

std::string StreamExecutor::unfinished() const {
  std::string text;
  for (std::size_t lane = 0; lane < lane_count; ++lane)
    if (done_[lane] < issued_[lane])
      text += fmt::format("{}lane {} is at `{}`", text.empty() ? "" : ", ", name_of(static_cast<Lane>(lane)),
                          issued_tasks_[lane][static_cast<std::size_t>((done_[lane] + 1) % ring)]->name);
  return text;
}

}  // namespace tessera

#endif
